package governance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"powernode/store"
)

// Finding is a row that does not fit the record.
type Finding struct {
	Table  string `json:"table"`
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Proof is what walking the record found.
type Proof struct {
	Rows     int64     `json:"rows"` // of the audit chain, that fit
	Findings []Finding `json:"findings"`
}

// Prove walks the audit chain and holds every decision, policy and human key against it. What it can't show: a chain
// that was rewritten from its first row on while no platform ran.
func (s *Service) Prove(ctx context.Context, v *store.View) (Proof, error) {
	p := Proof{Findings: []Finding{}}
	var err error
	p.Rows, err = store.VerifyAudit(ctx, v, nil)
	var broken *store.BrokenAuditError
	switch {
	case errors.As(err, &broken):
		p.add("audit", broken.ID, "%s", broken.Error())
	case err != nil:
		return p, err
	}
	accounts, err := store.Accounts(ctx, v)
	if err != nil {
		return p, fmt.Errorf("list accounts: %w", err)
	}
	for _, a := range accounts {
		for _, prove := range []func(context.Context, *store.View, store.AccountID, *Proof) error{s.proveKeys, s.provePolicies, s.proveOperations} {
			if err := prove(ctx, v, a.ID, &p); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

func (p *Proof) add(table, id, reason string, args ...any) {
	p.Findings = append(p.Findings, Finding{table, id, fmt.Sprintf(reason, args...)})
}

func (s *Service) proveKeys(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	rows, err := store.AuditOf(ctx, v, acct, userType, "")
	if err != nil {
		return fmt.Errorf("read the record of human keys: %w", err)
	}
	var keys []Key
	var hashes []string
	for _, row := range rows {
		if row.Action != keyCreated {
			continue
		}
		k, ok := s.accept(keys, row)
		if !ok {
			p.add("audit", string(row.ID), "it records a human key that no earlier key and not root has put there: the key does not count")
			continue
		}
		keys, hashes = replace(keys, k), append(hashes, row.Hash)
	}
	if !s.anchored(acct, hashes) {
		p.add("audit", string(rewritten(rows)), "the record of human keys was rewritten under this control plane: no key counts")
	}
	users, err := store.Users(ctx, v, acct)
	if err != nil {
		return fmt.Errorf("list people: %w", err)
	}
	for _, u := range users {
		i := slices.IndexFunc(keys, func(k Key) bool { return k.UserID == u.ID && k.Until == 0 })
		switch {
		case i < 0 && len(u.PublicKey) > 0:
			p.add("users", string(u.ID), "its public key is in no record")
		case i >= 0 && !bytes.Equal(keys[i].Public, u.PublicKey):
			p.add("users", string(u.ID), "its public key is not the recorded one")
		}
	}
	return nil
}

// rewritten names the row that stands where the record of human keys begins; empty: none does any more.
func rewritten(rows []store.AuditEntry) store.AuditEntryID {
	for _, row := range rows {
		if row.Action == keyCreated {
			return row.ID
		}
	}
	return ""
}

func (s *Service) provePolicies(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	stand, err := s.standing(ctx, v, acct)
	if err != nil {
		return err
	}
	rows, err := store.Policies(ctx, v, acct, "")
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	present := map[store.PolicyID]bool{}
	for _, row := range rows {
		var scope Scope
		if json.Unmarshal([]byte(row.Scope), &scope) != nil || !copied(stand, row, scope) {
			p.add("policies", string(row.ID), "no audit row with a valid signature stands behind it (%s, %s)", row.ActionCategory, row.Verdict)
			continue
		}
		present[row.ID] = true
	}
	for _, r := range stand {
		if !present[r.Policy.PolicyID] {
			p.add("policies", string(r.Policy.PolicyID), "it is recorded and signed, and its row is gone (%s, %s)", r.Policy.ActionCategory, r.Policy.Verdict)
		}
	}
	return s.provePolicyRecords(ctx, v, acct, p)
}

func (s *Service) provePolicyRecords(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	rows, err := store.AuditOf(ctx, v, acct, policyType, "")
	if err != nil {
		return fmt.Errorf("read the record of policies: %w", err)
	}
	keys, err := s.Keys(ctx, v, acct)
	if err != nil {
		return err
	}
	created := map[store.PolicyID]bool{}
	for _, row := range rows {
		var r policyRecord
		if !decode(row.New, &r) || string(r.Policy.PolicyID) != row.ResourceID {
			p.add("audit", string(row.ID), "it is no record of a policy")
			continue
		}
		if _, ok := signer(keys, row.Sequence, r.Policy.Bytes(), r.Signature); !ok {
			p.add("audit", string(row.ID), "the policy's signature is not by a human key")
			continue
		}
		if r.Policy.Verdict != Unset && created[r.Policy.PolicyID] {
			p.add("audit", string(row.ID), "it repeats an earlier record of the policy")
		}
		created[r.Policy.PolicyID] = true
	}
	return nil
}

func (s *Service) proveOperations(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	keys, err := s.Keys(ctx, v, acct)
	if err != nil {
		return err
	}
	rows, err := store.AuditOf(ctx, v, acct, operationType, "")
	if err != nil {
		return fmt.Errorf("read the record of operations: %w", err)
	}
	record := map[string][]store.AuditEntry{}
	for _, row := range rows {
		record[row.ResourceID] = append(record[row.ResourceID], row)
	}
	operations, err := store.Operations(ctx, v, acct, "", "")
	if err != nil {
		return fmt.Errorf("list operations: %w", err)
	}
	for _, o := range operations {
		if reason := s.misfit(keys, o, record[string(o.ID)]); reason != "" {
			p.add("operations", string(o.ID), "%s", reason)
		}
		delete(record, string(o.ID))
	}
	for id := range record {
		p.add("operations", id, "it is recorded, and its row is gone")
	}
	return nil
}

// misfit says what of an operation does not fit its record; "" is nothing.
func (s *Service) misfit(keys []Key, o store.Operation, record []store.AuditEntry) string {
	status, decided, byHand := Pending, false, false
	for _, row := range record {
		if byHand = row.Action == disregarded; byHand {
			continue
		}
		switch row.Action {
		case Approved, Rejected:
			if status != Pending {
				return fmt.Sprintf("its record says %s after %s", row.Action, status)
			}
			decided = true
			if !s.decisionFits(keys, o, row) {
				return "its decision has no valid signature by a human key"
			}
		case Executing:
			if status != Approved {
				return "it ran without an approval"
			}
		case Completed, Failed:
			if status != Approved && status != Executing {
				return "it ran without an approval"
			}
		}
		status = row.Action
	}
	switch {
	case o.Status != status:
		return fmt.Sprintf("its status is %s, and its record says %s", o.Status, status)
	case !decided && (len(o.Signature) > 0 || o.DecidedBy != ""):
		return "it holds a decision that is in no record"
	case byHand:
		return "an approval that nobody has signed was written there, and was disregarded"
	}
	return ""
}

func (s *Service) decisionFits(keys []Key, o store.Operation, row store.AuditEntry) bool {
	var r decisionRecord
	if !decode(row.New, &r) || !bytes.Equal(r.Signature, o.Signature) || r.Comment != o.Comment || string(r.UserID) != o.DecidedBy {
		return false
	}
	decision := Approve
	if row.Action == Rejected {
		decision = Reject
	}
	statement, err := s.Statement(o, decision, r.Comment, r.UserID)
	if err != nil {
		return false
	}
	k, ok := signer(keys, row.Sequence, statement.Bytes(), r.Signature)
	return ok && k.UserID == r.UserID
}
