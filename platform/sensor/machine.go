package sensor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"powernode/platform/provider"
	"powernode/platform/signal"
	"powernode/store"
)

const (
	kindStateDrifted = "system.instance_state_drifted"
	// pollDeadline bounds what one provider is asked.
	pollDeadline = 30 * time.Second
	// toldFor is how old a provider's word may be to count as a measurement.
	toldFor = 2 * time.Minute
)

// Poll asks the account's providers what their machines do, outside any transaction; the sensor of states compares it with
// the rows. A provider that can't say, or doesn't answer, leaves its machines not measured.
func (s *Service) Poll(ctx context.Context, acct store.AccountID) error {
	var types []string
	err := s.DB.View(ctx, func(v *store.View) error {
		rows, err := store.Providers(ctx, v, acct)
		seen := map[string]bool{}
		for _, p := range rows {
			if !seen[p.ProviderType] {
				types = append(types, p.ProviderType)
			}
			seen[p.ProviderType] = true
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the providers: %w", err)
	}
	var faults []error
	for _, kind := range types {
		adapter := s.Fleet.Providers[kind]
		if adapter == nil || !provider.Can(adapter, provider.CapabilitySync) {
			continue
		}
		if err := s.poll(ctx, acct, kind, adapter); err != nil {
			faults = append(faults, fmt.Errorf("ask provider %s for its machines: %w", kind, err))
		}
	}
	return errors.Join(faults...)
}

// told is what a provider said of an account's machines.
type told struct {
	at       time.Time
	machines map[string]provider.Status // by the provider's id
}

type toldKey struct {
	account store.AccountID
	kind    string
}

func (s *Service) poll(ctx context.Context, acct store.AccountID, kind string, adapter provider.Provider) error {
	ctx, cancel := context.WithTimeout(ctx, pollDeadline)
	defer cancel()
	var asked time.Time // before the answer: what the machines did since is not in it
	err := s.DB.View(ctx, func(v *store.View) error {
		asked = v.Now()
		return nil
	})
	if err != nil {
		return err
	}
	list, err := adapter.List(ctx, string(acct))
	if err != nil {
		return err
	}
	t := told{at: asked, machines: map[string]provider.Status{}}
	for _, m := range list {
		t.machines[m.ID] = m.Status
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[toldKey{acct, kind}] = t
	return nil
}

// lookStates compares the recorded status of machines with what their providers say.
func (s *Service) lookStates(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	instances, err := store.Instances(ctx, v, in.Account, "", "", "")
	if err != nil {
		return nil, err
	}
	providers, err := store.Providers(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	types := map[store.ProviderID]string{}
	for _, p := range providers {
		types[p.ID] = p.ProviderType
	}
	var out []Observation
	for _, i := range instances {
		if !i.Live() {
			continue
		}
		o := Observation{Kind: kindStateDrifted, Subject: string(i.ID), About: signal.Subject{NodeID: i.NodeID, InstanceID: i.ID}}
		is, measured := s.machineOf(in.Account, types[i.ProviderID], i, v.Now())
		if measured {
			o.Payload = store.Object{"recorded": i.Status, "provider_status": string(is)}
			switch drifted, known := statesDiffer(i.Status, is); {
			case !known:
			case !drifted:
				o.State = Well
			case in.lasted(v.Now(), o.Subject, v.Now()) >= in.Values.duration("grace_seconds"):
				o.State = Wrong
			}
		}
		out = append(out, o)
	}
	return out, nil
}

// machineOf is the status that a provider told of an instance's machine since the row was written; one that it does not
// list is gone.
func (s *Service) machineOf(acct store.AccountID, kind string, i store.Instance, now time.Time) (provider.Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, asked := s.told[toldKey{acct, kind}]
	if !asked || i.CloudInstanceID == "" || i.Intent != "" || now.Sub(t.at) > toldFor || t.at.Before(i.UpdatedAt.Time) {
		return "", false
	}
	status, listed := t.machines[i.CloudInstanceID]
	if !listed {
		return provider.StatusTerminated, true
	}
	return status, true
}

// statesDiffer holds a recorded status against a provider's. Where either is on its way to another, nothing is known.
func statesDiffer(recorded string, is provider.Status) (drifted, known bool) {
	settled := map[provider.Status]string{provider.StatusRunning: store.InstanceRunning, provider.StatusStopped: store.InstanceStopped,
		provider.StatusTerminated: store.InstanceTerminated, provider.StatusFailed: store.InstanceError}
	as, there := settled[is]
	if !there || (recorded != store.InstanceRunning && recorded != store.InstanceStopped) {
		return false, false
	}
	return as != recorded, true
}
