package tools

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"powernode/platform/governance"
	"powernode/platform/sensor"
	"powernode/platform/signal"
	"powernode/store"
)

const (
	// sensorsLooked is how often sensors are asked whether they are due.
	sensorsLooked = time.Second
	// polledEvery is how often providers are asked what their machines do.
	polledEvery = 30 * time.Second
	// prunedEvery is how often what is past its time is looked for.
	prunedEvery = time.Hour
)

func sensorVerbs() []*Definition { return []*Definition{getSensorConfig(), updateSensorConfig()} }

// sensing is the platform's sensors, made when they are first needed.
type sensing struct {
	once    sync.Once
	service *sensor.Service
}

// Sensors are the platform's sensors: those of the domain, and the one that looks at its verbs.
func (p *Platform) Sensors() *sensor.Service {
	p.sensing.once.Do(func() { p.sensing.service = sensor.New(p.DB, p.Fleet, p.Network, p.governanceGap()) })
	return p.sensing.service
}

// RunSensors looks at every account with the sensors, applies remedies to what they find, asks the providers, and removes what
// is past its time, until the context ends. A provider that is slow to answer delays no sensor.
func (p *Platform) RunSensors(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return p.each(ctx, sensorsLooked, "not looked at with every sensor", p.LookWithSensors) })
	group.Go(func() error { return p.each(ctx, polledEvery, "not every provider was asked", p.PollProviders) })
	group.Go(func() error {
		return p.each(ctx, prunedEvery, "what is past its time is not removed", p.Sensors().Prune)
	})
	return group.Wait()
}

// each does something again and again until the context ends.
func (p *Platform) each(ctx context.Context, every time.Duration, failed string, do func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := do(ctx); err != nil && ctx.Err() == nil {
				p.Log.Error().Err(err).Msg(failed)
			}
		}
	}
}

// PollProviders asks the providers of every account what their machines do.
func (p *Platform) PollProviders(ctx context.Context) error {
	return p.eachAccount(ctx, func(acct store.AccountID) error { return p.Sensors().Poll(ctx, acct) })
}

// LookWithSensors is one round of RunSensors: the sensors that are due, then the remedies.
func (p *Platform) LookWithSensors(ctx context.Context) error {
	return p.eachAccount(ctx, func(acct store.AccountID) error {
		return errors.Join(p.Sensors().Tick(ctx, acct), p.remedy(ctx, acct))
	})
}

const kindGovernanceGap = "system.governance_gap"

// governanceGap asks whether everything that writes is gated: each verb that writes has a category with a compiled-in verdict,
// and each policy row speaks of a category that there is.
func (p *Platform) governanceGap() sensor.Sensor {
	return sensor.Sensor{Name: "governance_gap", Kinds: []string{kindGovernanceGap}, Every: 30 * time.Second, ByRows: true,
		Look: func(ctx context.Context, v *store.View, in sensor.Input) ([]sensor.Observation, error) {
			out := p.ungated()
			rows, err := store.Policies(ctx, v, in.Account, "")
			if err != nil {
				return nil, fmt.Errorf("read the policies: %w", err)
			}
			for _, row := range rows {
				if _, known := governance.Defaults[row.ActionCategory]; !known {
					category := governance.Plain(row.ActionCategory, 64)
					out = append(out, gap(category, signal.Medium, category, nil, "a policy speaks of a category that there is not"))
				}
			}
			return out, nil
		}}
}

// ungated are the verbs that write and are not gated, or by a category without a verdict.
func (p *Platform) ungated() []sensor.Observation {
	var out []sensor.Observation
	for _, d := range p.order {
		if d.run == nil || d.Verb.Annotations.ReadOnly && !d.Verb.Gated() {
			continue
		}
		if d.Verb.Category == "" && d.category == nil {
			out = append(out, gap(d.name, signal.High, nil, d.name, "the verb writes and has no action category"))
		}
		for _, category := range append([]string{d.Verb.Category}, d.Verb.Escalates...) {
			if _, known := governance.Defaults[category]; !known && category != "" {
				out = append(out, gap(d.name+":"+category, signal.Medium, category, d.name, "the category has no compiled-in verdict"))
			}
		}
	}
	return out
}

func gap(subject, severity string, category, verb any, reason string) sensor.Observation {
	return sensor.Observation{Kind: kindGovernanceGap, Subject: subject, State: sensor.Wrong, Severity: severity,
		Payload: store.Object{"action_category": category, "verb": verb, "reason": reason}}
}

// sensorView is a sensor as it stands for an account.
type sensorView struct {
	Name       string               `json:"name"`
	Kinds      []string             `json:"kinds"`
	Enabled    bool                 `json:"enabled"`
	Thresholds sensor.Values        `json:"thresholds"`
	Defaults   sensor.Values        `json:"defaults"`
	Ranges     map[string]rangeView `json:"ranges"`
	Remedy     *remedyView          `json:"remedy"`
}

type rangeView struct {
	Minimum int64 `json:"minimum"`
	Maximum int64 `json:"maximum"`
}

func viewSensor(c sensor.Config) sensorView {
	out := sensorView{Name: c.Sensor.Name, Kinds: []string{}, Enabled: c.Enabled, Thresholds: c.Values, Defaults: c.Sensor.Defaults(),
		Ranges: map[string]rangeView{}}
	for _, kind := range c.Sensor.Kinds {
		out.Kinds = append(out.Kinds, kind, signal.Catalogue[kind].Closes)
		if r, has := remedyOf(kind); has {
			out.Remedy = r.view()
		}
	}
	for _, t := range c.Sensor.Thresholds {
		out.Ranges[t.Name] = rangeView{t.Minimum, t.Maximum}
	}
	return out
}

type getSensorConfigArgs struct {
	Sensor *string `json:"sensor"`
}

type getSensorConfigResult struct {
	Sensors []sensorView `json:"sensors"`
}

func getSensorConfig() *Definition {
	return define("system_get_sensor_config", handler[getSensorConfigArgs, getSensorConfigResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a getSensorConfigArgs) (r getSensorConfigResult, err error) {
			if a.Sensor != nil {
				one, err := p.Sensors().Config(ctx, v, c.AccountID, *a.Sensor)
				r.Sensors = []sensorView{viewSensor(one)}
				return r, err
			}
			all, err := p.Sensors().Configs(ctx, v, c.AccountID)
			r.Sensors = mapped(all, viewSensor)
			return r, err
		},
	})
}

type updateSensorConfigArgs struct {
	Sensor string       `json:"sensor"`
	Config store.Object `json:"config"`
}

type updateSensorConfigResult struct {
	Sensor sensorView `json:"sensor"`
	Written
}

func updateSensorConfig() *Definition {
	return define("system_update_sensor_config", handler[updateSensorConfigArgs, updateSensorConfigResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a updateSensorConfigArgs) error {
			return p.Sensors().CheckConfig(ctx, v, c.AccountID, a.Sensor, a.Config)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a updateSensorConfigArgs) (r updateSensorConfigResult, err error) {
			now, err := p.Sensors().Configure(ctx, tx, c.AccountID, a.Sensor, a.Config)
			r.Sensor = viewSensor(now)
			return r, err
		},
	})
}
