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

// resumeCategory is the category of ending the stop. Where an account's policy has it approved, a stop that begins under that
// policy ends with the signature of an approval alone.
const resumeCategory = "platform.resume"

// Emergency is an account's emergency stop: no assistant changes anything, and no controller starts anything new.
type Emergency struct {
	Since  store.Time
	Reason string

	id       store.AuditEntryID // of the row that began it
	sequence int64
	signed   bool // a signed approval alone ends it
}

// stopRecord is a stop's row. Signed says that the policy of its time wanted an approval of its end; else a person's credential
// is enough for it.
type stopRecord struct {
	Reason string     `json:"reason"`
	Since  store.Time `json:"since"`
	Signed bool       `json:"ends_signed"`
}

// Stopped is the emergency stop that is on, or nil. It stands in the audit chain alone. Of a stop that takes a signature to end,
// a row that says that it ended counts with one behind it.
func (s *Service) Stopped(ctx context.Context, v *store.View, acct store.AccountID) (*Emergency, error) {
	e, _, err := s.emergencies(ctx, v, acct)
	return e, err
}

// emergencies walks the record of an account's emergency stops: the one that is on, and the rows that end none.
func (s *Service) emergencies(ctx context.Context, v *store.View, acct store.AccountID) (on *Emergency, odd []store.AuditEntry, err error) {
	rows, err := store.AuditOf(ctx, v, acct, emergencyType, string(acct))
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of emergency stops: %w", err)
	}
	for _, row := range rows {
		switch {
		case row.Action == emergencyStopped:
			on = on.begun(row)
		case row.Action != emergencyResumed || on == nil:
			odd = append(odd, row)
		default:
			ends := !on.signed
			if !ends {
				if ends, err = s.ended(ctx, v, on, row); err != nil {
					return on, odd, err
				}
			}
			if !ends {
				s.suspect(acct, "emergency_stop", string(row.ID))
				odd = append(odd, row)
				continue
			}
			on = nil
		}
	}
	return on, odd, nil
}

// begun is the stop that is on after a row that begins one: that which was on before, where one was.
func (e *Emergency) begun(row store.AuditEntry) *Emergency {
	var r stopRecord
	if !decode(row.New, &r) || r.Since.IsZero() {
		r.Since = row.CreatedAt
	}
	if e != nil {
		on := *e
		on.signed = on.signed || r.Signed
		return &on
	}
	return &Emergency{Since: r.Since, Reason: r.Reason, id: row.ID, sequence: row.Sequence, signed: r.Signed}
}

// ended says whether a row ends a stop: the approval of its operation is a person's, and signs over a record in which the stop
// stands.
func (s *Service) ended(ctx context.Context, v *store.View, e *Emergency, row store.AuditEntry) (bool, error) {
	o, err := store.OperationByID(ctx, v, row.AccountID, store.OperationID(row.Actor.OperationID))
	switch {
	case errors.Is(err, store.ErrNoRow):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the operation that ended an emergency stop: %w", err)
	case o.Verb != VerbResume || o.Head.Rows < e.sequence:
		return false, nil
	}
	end := fmt.Sprintf("%s %s %d %s", row.AccountID, e.id, e.sequence, o.ID)
	if _, known := s.ends.Load(end); known { // asked with every call of an assistant
		return true, nil
	}
	if there, err := store.HasHead(ctx, v, o.Head); err != nil || !there {
		return false, err
	}
	rows, err := store.AuditOf(ctx, v, row.AccountID, operationType, string(o.ID))
	if err != nil {
		return false, fmt.Errorf("read the record of operation %s: %w", o.ID, err)
	}
	known, err := s.known(ctx, v, row.AccountID)
	if err != nil {
		return false, err
	}
	for _, decided := range rows {
		if decided.Action == Approved && decided.Sequence > o.Head.Rows && decided.Sequence < row.Sequence && s.decisionFits(known, o, decided) {
			s.ends.Store(end, true)
			return true, nil
		}
	}
	return false, nil
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
	ends, err := s.Decide(ctx, &tx.View, Caller{AccountID: acct, Kind: KindPerson}, resumeCategory, nil)
	if err != nil {
		return Emergency{}, err
	}
	stopped := Emergency{Since: store.At(tx.Now()), Reason: reason}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: emergencyStopped, ResourceType: emergencyType, ResourceID: string(acct),
		New: object(stopRecord{Reason: reason, Since: stopped.Since, Signed: ends == RequireApproval})})
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

// endsSigned says whether a call would end a stop that takes a signature, whatever the policies say by now.
func (s *Service) endsSigned(ctx context.Context, v *store.View, acct store.AccountID, category string) (bool, error) {
	if category != resumeCategory {
		return false, nil
	}
	e, err := s.Stopped(ctx, v, acct)
	return e != nil && e.signed, err
}

// Resume ends the emergency stop, and answers how long it was on.
func (s *Service) Resume(ctx context.Context, tx *store.Tx, acct store.AccountID, reason string) (seconds int64, err error) {
	e, err := s.Stopped(ctx, &tx.View, acct)
	if err != nil {
		return 0, err
	}
	seconds = int64(tx.Now().Sub(e.Since.Time).Seconds())
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: emergencyResumed, ResourceType: emergencyType, ResourceID: string(acct),
		Old: store.Object{"stop_id": e.id, "since": e.Since, "reason": e.Reason}, New: store.Object{"reason": reason}})
	if err != nil {
		return seconds, err
	}
	return seconds, signal.Close(ctx, tx, acct, string(acct), "system.emergency_stop", signal.Subject{},
		store.Object{"reason": reason, "by": tx.Actor().ID})
}

// proveEmergencies names the rows that say that a stop ended, and have no signature behind them.
func (s *Service) proveEmergencies(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	_, odd, err := s.emergencies(ctx, v, acct)
	for _, row := range odd {
		p.add("audit", string(row.ID), "no person has signed it: it ends no emergency stop")
	}
	return err
}
