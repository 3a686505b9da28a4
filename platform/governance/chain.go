package governance

import (
	"context"
	"fmt"

	"powernode/schema"
	"powernode/store"
)

// What a person signs names the end of the audit chain as it was then (chain). Nobody can take that back, so the rows that it
// stands on can't be taken away, or written anew, without a finding for as long as the statement is recorded.

// errCut refuses what was signed over a record that this is not.
var errCut = schema.Errorf(schema.Conflict, "the audit chain has not the row that this was signed over: it was cut or written anew (powernode audit verify)")

// standsOn refuses a statement over another record. One without a head stands on none: the key says what it signed, not we.
func standsOn(ctx context.Context, v *store.View, head *store.Head) error {
	if head == nil {
		return nil
	}
	there, err := store.HasHead(ctx, v, *head)
	if err == nil && !there {
		return errCut
	}
	return err
}

// headNow is the end of the audit chain, as a statement names it.
func headNow(ctx context.Context, v *store.View) (*store.Head, error) {
	h, err := store.AuditHead(ctx, v)
	return &h, err
}

// Cut looks for the row that the audit chain ended with before; where it is gone, or another, the answer says so. A head that
// this process has seen is asked for before the view began.
func Cut(ctx context.Context, v *store.View, held store.Head) (*Finding, error) {
	there, err := store.HasHead(ctx, v, held)
	if err != nil || there {
		return nil, err
	}
	last, _, err := store.AuditPage(ctx, v, store.AuditFilter{}, 0, 1)
	if err != nil {
		return nil, fmt.Errorf("read the end of the audit chain: %w", err)
	}
	f := Finding{Table: "audit", Reason: fmt.Sprintf("the record ended with row %d before, and that row is gone or another: it was cut or written anew", held.Rows)}
	if len(last) > 0 {
		f.ID = string(last[0].ID)
	}
	return &f, nil
}

// headed are the types of rows that record what people have signed.
var headed = []string{operationType, policyType, userType, tokenType}

// proveHeads holds what people have signed over the record against the record.
func (s *Service) proveHeads(ctx context.Context, v *store.View, acct store.AccountID, p *Proof) error {
	for _, kind := range headed {
		rows, err := store.AuditOf(ctx, v, acct, kind, "")
		if err != nil {
			return fmt.Errorf("read the record of %s: %w", kind, err)
		}
		for _, row := range rows {
			head := headOf(row)
			if head == nil {
				continue
			}
			there, err := store.HasHead(ctx, v, *head)
			switch {
			case err != nil:
				return err
			case !there, head.Rows >= row.Sequence:
				p.add("audit", string(row.ID), "it was signed over a record with row %d, and that row is gone or another: the record before it was cut or written anew", head.Rows)
			}
		}
	}
	return nil
}

// headOf is the head that a recorded statement names; nil: none.
func headOf(row store.AuditEntry) *store.Head {
	var r struct {
		Chain  *store.Head `json:"chain"` // of a decision and of a key
		Policy struct {
			Chain *store.Head `json:"chain"`
		} `json:"policy"`
		User struct {
			Chain *store.Head `json:"chain"`
		} `json:"user"`
		Token struct {
			Chain *store.Head `json:"chain"`
		} `json:"token"`
	}
	if !decode(row.New, &r) {
		return nil
	}
	for _, head := range []*store.Head{r.Chain, r.Policy.Chain, r.User.Chain, r.Token.Chain} {
		if head != nil {
			return head
		}
	}
	return nil
}
