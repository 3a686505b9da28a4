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
	Rows     int64      `json:"rows"` // of the audit chain, that fit
	Head     store.Head `json:"head"` // of the chain: noted elsewhere, it shows later that nothing was taken away
	Findings []Finding  `json:"findings"`
}

// Prove walks the audit chain and holds every decision, policy, person, credential, human key and end of an emergency stop
// against it. heads are ends that the chain had before: what this process has seen, and what a person has noted. What it can't
// show is what somebody who writes the database does, with hashes that fit, to rows that nobody has signed since, in a time
// when no control plane ran: take them away from the chain's end, or add such as need no signature; and, unless a person has
// noted a head, the whole database put back to what it was. Against that only another user for the platform helps.
func (s *Service) Prove(ctx context.Context, v *store.View, heads ...store.Head) (Proof, error) {
	p := Proof{Findings: []Finding{}}
	var err error
	if p.Head, err = store.AuditHead(ctx, v); err != nil {
		return p, err
	}
	p.Rows, err = store.VerifyAudit(ctx, v, nil)
	var broken *store.BrokenAuditError
	switch {
	case errors.As(err, &broken):
		p.add("audit", broken.ID, "%s", broken.Error())
	case err != nil:
		return p, err
	}
	for _, head := range heads {
		cut, err := Cut(ctx, v, head)
		if err != nil {
			return p, err
		}
		if cut != nil {
			p.Findings = append(p.Findings, *cut)
		}
	}
	accounts, err := store.Accounts(ctx, v)
	if err != nil {
		return p, fmt.Errorf("list accounts: %w", err)
	}
	for _, a := range accounts {
		for _, prove := range []func(context.Context, *store.View, store.AccountID, *Proof) error{s.provePeople, s.proveTokens, s.provePolicies,
			s.proveOperations, s.proveEmergencies, s.proveHeads} {
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

func (s *Service) provePeople(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	r, err := s.people(ctx, v, acct)
	if err != nil {
		return err
	}
	for _, row := range r.rows {
		if reason := r.odd[row.Sequence]; reason != "" {
			p.add("audit", string(row.ID), "%s", reason)
		}
	}
	if !s.anchored(acct, r.hashes) {
		p.add("audit", string(rewritten(r.rows)), "the record of human keys was rewritten under this control plane: no key counts")
	}
	users, err := store.Users(ctx, v, acct)
	if err != nil {
		return fmt.Errorf("list people: %w", err)
	}
	present := map[store.UserID]bool{}
	for _, u := range users {
		present[u.ID] = true
		if reason := r.unlike(u); reason != "" {
			p.add("users", string(u.ID), "%s", reason)
		}
	}
	for id := range r.people {
		if !present[id] {
			p.add("users", string(id), "the person is recorded, and their row is gone")
		}
	}
	return nil
}

// unlike says what of a person's row is not as recorded; "" is nothing.
func (r *record) unlike(u store.User) string {
	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.UserID == u.ID && k.Until == 0 })
	stands, there := r.people[u.ID]
	switch {
	case i < 0 && len(u.PublicKey) > 0:
		return "its public key is in no record"
	case i >= 0 && !bytes.Equal(r.keys[i].Public, u.PublicKey):
		return "its public key is not the recorded one"
	case !there && len(r.keys) > 0:
		return "no administrator has signed the person"
	case there && (u.Role != stands.Role || u.Email != stands.Email || !slices.Equal(u.Grants, stands.Grants)):
		return fmt.Sprintf("it is not as recorded: %s, %s", stands.Email, stands.Role)
	}
	return ""
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
	h, err := s.policyHistory(ctx, v, acct)
	if err != nil {
		return err
	}
	stand := h.stand
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
	p.Findings = append(p.Findings, h.odd...)
	return nil
}

func (s *Service) proveOperations(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	known, err := s.known(ctx, v, acct)
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
		if reason := s.misfit(known, o, record[string(o.ID)]); reason != "" {
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
func (s *Service) misfit(known *record, o store.Operation, rows []store.AuditEntry) string {
	status, decided, byHand := Pending, false, false
	for _, row := range rows {
		if byHand = row.Action == disregarded; byHand {
			continue
		}
		switch row.Action {
		case Approved, Rejected:
			if status != Pending {
				return fmt.Sprintf("its record says %s after %s", row.Action, status)
			}
			decided = true
			if !s.decisionFits(known, o, row) {
				return "its decision has no valid signature by the human key of somebody who could decide it"
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

// decisionFits says whether an operation's decision is the recorded one, by somebody who could decide it then.
func (s *Service) decisionFits(known *record, o store.Operation, row store.AuditEntry) bool {
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
	k, ok := s.signer(known.keys, row.Sequence, statement.Bytes(), r.Signature)
	return ok && k.UserID == r.UserID && known.couldDecide(o, k.UserID, row.Sequence)
}
