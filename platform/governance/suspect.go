package governance

import (
	"context"
	"slices"
	"sync"

	"powernode/platform/signal"
	"powernode/store"
)

// suspects are approvals and policies whose signature does not fit. They are found while reading, which can't write:
// they wait here for a transaction that tells of them, once.
type suspects struct {
	mu      sync.Mutex
	told    map[suspect]bool
	waiting []suspect
}

type suspect struct {
	account     store.AccountID
	subject, id string // approval or policy
}

func (s *Service) suspect(acct store.AccountID, subject, id string) {
	l := &s.suspects
	l.mu.Lock()
	defer l.mu.Unlock()
	one := suspect{acct, subject, id}
	if l.told[one] {
		return
	}
	if l.told == nil {
		l.told = map[suspect]bool{}
	}
	l.told[one] = true
	l.waiting = append(l.waiting, one)
}

// Suspected says whether something waits for Tell.
func (s *Service) Suspected() bool {
	s.suspects.mu.Lock()
	defer s.suspects.mu.Unlock()
	return len(s.suspects.waiting) > 0
}

// Tell emits the signals of what was found with a signature that does not fit. What is not committed waits on.
func (s *Service) Tell(ctx context.Context, tx *store.Tx) error {
	s.suspects.mu.Lock()
	waiting := slices.Clone(s.suspects.waiting)
	s.suspects.mu.Unlock()
	tx.Committed(func() {
		s.suspects.mu.Lock()
		defer s.suspects.mu.Unlock()
		s.suspects.waiting = s.suspects.waiting[len(waiting):] // others have come behind them alone
	})
	for _, one := range waiting {
		err := signal.Emit(ctx, tx, one.account, signal.Event{Kind: "system.signature_invalid",
			Payload: store.Object{"subject": one.subject, "id": one.id}})
		if err != nil {
			return err
		}
	}
	return nil
}

// TellBroken emits the signals of audit rows that do not fit; each is told once.
func (s *Service) TellBroken(ctx context.Context, tx *store.Tx, acct store.AccountID, p Proof) error {
	told, err := store.LatestSignals(ctx, &tx.View, acct, "system.audit_chain_broken", "", maxTold)
	if err != nil {
		return err
	}
	before := map[any]bool{}
	for _, e := range told {
		before[e.Payload["entry_id"]] = true
	}
	for _, f := range p.Findings {
		if f.Table != "audit" || before[f.ID] {
			continue
		}
		err := signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.audit_chain_broken", Payload: store.Object{"entry_id": f.ID}})
		if err != nil {
			return err
		}
	}
	return nil
}

const maxTold = 1000
