package governance

import (
	"context"
	"errors"
	"fmt"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/store"
)

const (
	emergencyType    = "Governance::EmergencyStop"
	emergencyStopped = "stopped"
	emergencyResumed = "resumed"
)

// The verbs of the emergency stop.
const (
	VerbStop   = "platform_emergency_stop"
	VerbResume = "platform_resume"
)

// Emergency is an account's emergency stop: no assistant changes anything, and no controller starts anything new.
type Emergency struct {
	Since  store.Time
	Reason string
}

// Stopped is the emergency stop that is on, or nil. It stands in the audit chain alone, which names who ended it. It is no
// signature's: a person's credential ends it, and so does whoever can write the database (see Prove).
func (s *Service) Stopped(ctx context.Context, v *store.View, acct store.AccountID) (*Emergency, error) {
	last, err := store.LatestAudit(ctx, v, acct, emergencyType, string(acct))
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for an emergency stop: %w", err)
	}
	if last.Action != emergencyStopped {
		return nil, nil
	}
	reason, _ := last.New["reason"].(string)
	return &Emergency{Since: last.CreatedAt, Reason: reason}, nil
}

// Refuses says whether an emergency stop refuses what a caller asks for. People go on.
func (s *Service) Refuses(ctx context.Context, v *store.View, c Caller) error {
	if c.Human() {
		return nil
	}
	e, err := s.Stopped(ctx, v, c.AccountID)
	if err != nil || e == nil {
		return err
	}
	return e.refusal()
}

func (e *Emergency) refusal() error {
	return schema.Errorf(schema.BlockedByPolicy, "emergency stop since %s", e.Since).WithDetail("reason", Plain(e.Reason, quotedLength))
}

// Stop turns the emergency stop on; one that is on stays as it began.
func (s *Service) Stop(ctx context.Context, tx *store.Tx, acct store.AccountID, reason string) (Emergency, error) {
	e, err := s.Stopped(ctx, &tx.View, acct)
	if err != nil {
		return Emergency{}, err
	}
	if e != nil {
		return *e, nil
	}
	stopped := Emergency{Since: store.At(tx.Now()), Reason: reason}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: emergencyStopped, ResourceType: emergencyType, ResourceID: string(acct),
		New: store.Object{"reason": reason, "since": stopped.Since}})
	if err != nil {
		return stopped, err
	}
	return stopped, signal.Open(ctx, tx, acct, string(acct), signal.Event{Kind: "system.emergency_stop",
		Payload: store.Object{"reason": reason, "by": tx.Actor().ID}})
}

// CheckResume refuses where nothing is stopped.
func (s *Service) CheckResume(ctx context.Context, v *store.View, acct store.AccountID) error {
	e, err := s.Stopped(ctx, v, acct)
	if err == nil && e == nil {
		return schema.Errorf(schema.PreconditionFailed, "there is no emergency stop")
	}
	return err
}

// Resume ends the emergency stop, and answers how long it was on.
func (s *Service) Resume(ctx context.Context, tx *store.Tx, acct store.AccountID, reason string) (seconds int64, err error) {
	e, err := s.Stopped(ctx, &tx.View, acct)
	if err != nil {
		return 0, err
	}
	seconds = int64(tx.Now().Sub(e.Since.Time).Seconds())
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: emergencyResumed, ResourceType: emergencyType, ResourceID: string(acct),
		Old: store.Object{"since": e.Since, "reason": e.Reason}, New: store.Object{"reason": reason}})
	if err != nil {
		return seconds, err
	}
	return seconds, signal.Close(ctx, tx, acct, string(acct), "system.emergency_stop", signal.Subject{},
		store.Object{"reason": reason, "by": tx.Actor().ID})
}
