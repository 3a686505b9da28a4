package sensor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"powernode/schema"
	"powernode/store"
)

// Threshold is a number of a sensor that an account may set.
type Threshold struct {
	Name             string // ends in its unit: _seconds, _count
	Default          int64
	Minimum, Maximum int64
	// Above names a threshold that this one may not be below; empty: none.
	Above string
}

// Values are a sensor's numbers as they hold for an account.
type Values map[string]int64

func (v Values) duration(name string) time.Duration { return time.Duration(v[name]) * time.Second }

// Config is a sensor as it stands for an account.
type Config struct {
	Sensor  Sensor
	Enabled bool
	Values  Values
}

const enabledKey = "enabled"

// Defaults are a sensor's compiled-in numbers.
func (s Sensor) Defaults() Values {
	out := Values{}
	for _, t := range s.Thresholds {
		out[t.Name] = t.Default
	}
	return out
}

// Configs are the sensors as they stand for an account, by name.
func (s *Service) Configs(ctx context.Context, v *store.View, acct store.AccountID) ([]Config, error) {
	rows, err := store.SensorConfigs(ctx, v, acct)
	if err != nil {
		return nil, fmt.Errorf("read the sensors' configs: %w", err)
	}
	set := map[string]map[string]json.RawMessage{}
	for _, row := range rows {
		set[row.Sensor] = row.Config.V
	}
	out := make([]Config, 0, len(s.sensors))
	for _, one := range s.sensors {
		c := Config{Sensor: one, Enabled: true, Values: one.Defaults()}
		c.lay(set[one.Name])
		out = append(out, c)
	}
	return out, nil
}

// lay puts what an account has set over the defaults. A row that an older version wrote may name what is no key any more.
func (c *Config) lay(set map[string]json.RawMessage) {
	if raw, there := set[enabledKey]; there {
		c.Enabled = string(raw) != "false"
	}
	for name := range c.Values {
		var number int64
		if raw, there := set[name]; there && json.Unmarshal(raw, &number) == nil {
			c.Values[name] = number
		}
	}
}

// Config finds a sensor as it stands for an account.
func (s *Service) Config(ctx context.Context, v *store.View, acct store.AccountID, name string) (Config, error) {
	all, err := s.Configs(ctx, v, acct)
	if err != nil {
		return Config{}, err
	}
	for _, c := range all {
		if c.Sensor.Name == name {
			return c, nil
		}
	}
	return Config{}, s.unknown(name)
}

func (s *Service) unknown(name string) error {
	names := make([]string, len(s.sensors))
	for i, one := range s.sensors {
		names[i] = one.Name
	}
	candidates := names
	if near := schema.Nearest(name, names); near != "" {
		candidates = []string{near}
	}
	return schema.Errorf(schema.NotFound, "sensor not found").WithDetail("candidates", candidates)
}

// CheckConfig refuses a config that names an unknown key, or a number out of its range.
func (s *Service) CheckConfig(ctx context.Context, v *store.View, acct store.AccountID, name string, config store.Object) error {
	c, err := s.Config(ctx, v, acct, name)
	if err != nil {
		return err
	}
	set, err := plain(config)
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return schema.InvalidCombination("/config", "nothing to update — pass at least one of %s", strings.Join(c.Sensor.keys(), ", "))
	}
	if err := schema.ValidateConfig(c.Sensor.schema(), config); err != nil {
		return err
	}
	c.lay(set)
	for _, t := range c.Sensor.Thresholds {
		if t.Above != "" && c.Values[t.Name] < c.Values[t.Above] {
			return schema.InvalidCombination("/config/"+t.Name, "%s must not be below %s (%d is below %d)", t.Name, t.Above,
				c.Values[t.Name], c.Values[t.Above])
		}
	}
	return nil
}

// keys are what a config may set.
func (s Sensor) keys() []string {
	out := []string{enabledKey}
	for _, t := range s.Thresholds {
		out = append(out, t.Name)
	}
	return out
}

// schema is what a config of the sensor is held against.
func (s Sensor) schema() json.RawMessage {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","additionalProperties":false,"properties":{"` + enabledKey + `":{"type":"boolean","description":"Whether it looks."}`)
	for _, t := range s.Thresholds {
		fmt.Fprintf(&b, `,%q:{"type":"integer","description":"A threshold.","minimum":%d,"maximum":%d}`, t.Name, t.Minimum, t.Maximum)
	}
	b.WriteString(`}}`)
	return b.Bytes()
}

// plain are a config's values as they are stored; those that are null were not given.
func plain(config store.Object) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for key, value := range config {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", key, err)
		}
		if number, ok := value.(float64); ok { // 1e2 is an integer: spelt as one
			raw = fmt.Appendf(nil, "%d", int64(number))
		}
		if string(raw) != "null" {
			out[key] = raw
		}
	}
	return out, nil
}

// Configure changes what an account says of a sensor; keys that are not given stay.
func (s *Service) Configure(ctx context.Context, tx *store.Tx, acct store.AccountID, name string, config store.Object) (Config, error) {
	if err := s.CheckConfig(ctx, &tx.View, acct, name, config); err != nil {
		return Config{}, err
	}
	c, err := s.Config(ctx, &tx.View, acct, name)
	if err != nil {
		return Config{}, err
	}
	before := c.object()
	set, err := plain(config)
	if err != nil {
		return Config{}, err
	}
	c.Values = maps.Clone(c.Values)
	c.lay(set)
	now := c.object()
	old, changed := store.Object{}, store.Object{}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if before[key] != now[key] {
			old[key], changed[key] = before[key], now[key]
		}
	}
	if len(changed) == 0 {
		return c, nil
	}
	row := store.SensorConfig{AccountID: acct, Sensor: name}
	row.Config.V = map[string]json.RawMessage{}
	defaults := Config{Sensor: c.Sensor, Enabled: true, Values: c.Sensor.Defaults()}.object()
	for key, value := range now {
		if value != defaults[key] { // what is left as it is compiled in follows a later version
			row.Config.V[key] = fmt.Append(nil, value)
		}
	}
	if err := store.PutSensorConfig(ctx, tx, row); err != nil {
		return Config{}, err
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "updated", ResourceType: "System::SensorConfig", ResourceID: name,
		Old: old, New: changed})
	return c, err
}

// object is a config as audit rows spell it.
func (c Config) object() store.Object {
	out := store.Object{enabledKey: c.Enabled}
	for name, value := range c.Values {
		out[name] = value
	}
	return out
}
