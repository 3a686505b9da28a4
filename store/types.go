package store

import (
	"cmp"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Ids are typed, so that two of them can't be swapped.
type (
	AccountID        string
	UserID           string
	TokenID          string
	NodeID           string
	TemplateID       string
	TemplateModuleID string
	ModuleID         string
	ModuleVersionID  string
	AssignmentID     string
	PlatformID       string
	ArchitectureID   string
	ProviderID       string
	ConnectionID     string
	RegionID         string
	InstanceTypeID   string
	InstanceID       string
	CertificateID    string
	NetworkID        string
	PeerID           string
	FirewallRuleID   string
	AccessGrantID    string
	UserDeviceID     string
	VirtualIPID      string
	ClusterID        string
	ClusterNodeID    string
	TaskID           string
	SignalID         string
	OperationID      string
	PolicyID         string
	ExecutionEventID string
	AuditEntryID     string
	ProbeID          string
)

// Time is an instant as rows and results spell it: RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// At makes a Time.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Millisecond)} }

// String spells the instant.
func (t Time) String() string { return t.UTC().Format(timeLayout) }

// MarshalJSON spells the instant.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(`"` + t.String() + `"`), nil }

// UnmarshalJSON reads RFC 3339.
func (t *Time) UnmarshalJSON(raw []byte) error {
	var parsed time.Time
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return err
	}
	*t = At(parsed)
	return nil
}

// Value stores the instant as text, which sorts as it should.
func (t Time) Value() (driver.Value, error) { return t.String(), nil }

// Scan reads the instant from its text.
func (t *Time) Scan(src any) error {
	switch v := src.(type) {
	case string:
		parsed, err := time.Parse(timeLayout, v)
		if err != nil {
			return fmt.Errorf("read a time: %w", err)
		}
		*t = At(parsed)
		return nil
	case time.Time:
		*t = At(v)
		return nil
	}
	return fmt.Errorf("read a time: unexpected %T", src)
}

// JSON is a column that holds a JSON value of type T.
type JSON[T any] struct{ V T }

// Value encodes the column.
func (j JSON[T]) Value() (driver.Value, error) {
	b, err := json.Marshal(j.V)
	return string(b), err
}

// Scan decodes the column; NULL leaves the zero value.
func (j *JSON[T]) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(v), &j.V)
	case []byte:
		return json.Unmarshal(v, &j.V)
	}
	return fmt.Errorf("read a JSON column: unexpected %T", src)
}

// Addr is a column that holds an IP address; the zero Addr is NULL.
type Addr struct{ netip.Addr }

// Value spells the address (RFC 5952).
func (a Addr) Value() (driver.Value, error) {
	if !a.IsValid() {
		return nil, nil
	}
	return a.String(), nil
}

// Scan reads the address.
func (a *Addr) Scan(src any) error {
	s, ok := src.(string)
	if src == nil || (ok && s == "") {
		*a = Addr{}
		return nil
	}
	if !ok {
		return fmt.Errorf("read an address: unexpected %T", src)
	}
	parsed, err := netip.ParseAddr(s)
	a.Addr = parsed
	return err
}

// Prefix is a column that holds a CIDR; the zero Prefix is NULL.
type Prefix struct{ netip.Prefix }

// Value spells the prefix.
func (p Prefix) Value() (driver.Value, error) {
	if !p.IsValid() {
		return nil, nil
	}
	return p.Masked().String(), nil
}

// Scan reads the prefix.
func (p *Prefix) Scan(src any) error {
	s, ok := src.(string)
	if src == nil || (ok && s == "") {
		*p = Prefix{}
		return nil
	}
	if !ok {
		return fmt.Errorf("read a prefix: unexpected %T", src)
	}
	parsed, err := netip.ParsePrefix(s)
	p.Prefix = parsed
	return err
}

// Object is a free-form JSON object as it was given.
type Object = map[string]any

func sortedKeys[K cmp.Ordered](m map[K]bool) []K { return slices.Sorted(maps.Keys(m)) }
