package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

func governanceVerbs() []*Definition {
	return []*Definition{requestConfirmation(), platformPreview(), platformGetOperation(), platformListOperations(), platformWhoami(),
		platformListPolicies(), platformAuditLog(), platformEmergencyStop(), platformResume(), platformSearchVerbs(), platformCallVerb()}
}

type whoamiArgs struct{}

type whoamiResult struct {
	Account whoamiAccount  `json:"account"`
	Caller  whoamiCaller   `json:"caller"`
	Users   []whoamiPerson `json:"users"`
}

type whoamiAccount struct {
	ID   store.AccountID `json:"id"`
	Name string          `json:"name"`
}

type whoamiCaller struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	Role string `json:"role"`
}

type whoamiPerson struct {
	ID    store.UserID `json:"id"`
	Email string       `json:"email"`
	Name  string       `json:"name"`
}

func platformWhoami() *Definition {
	return define("platform_whoami", handler[whoamiArgs, whoamiResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, _ whoamiArgs) (whoamiResult, error) {
			account, err := store.AccountByID(ctx, v, c.AccountID)
			if err != nil {
				return whoamiResult{}, fmt.Errorf("read the account: %w", err)
			}
			people, err := p.Governance.PeopleOf(ctx, v, c.AccountID)
			if err != nil {
				return whoamiResult{}, err
			}
			r := whoamiResult{Account: whoamiAccount{account.ID, account.Name}, Caller: whoamiCaller{c.ID, c.Kind, c.Role}, Users: []whoamiPerson{}}
			for _, u := range people {
				if u.Note != nil { // nobody whom an administrator has added
					continue
				}
				r.Users = append(r.Users, whoamiPerson{u.ID, u.Email, u.Name})
			}
			return r, nil
		},
	})
}

type confirmArgs struct {
	ActionDescription string          `json:"action_description"`
	ToolName          string          `json:"tool_name"`
	ToolArguments     json.RawMessage `json:"tool_arguments"`
}

type confirmResult struct {
	Status              string            `json:"status"`
	DeferredOperationID store.OperationID `json:"deferred_operation_id"`
	ActionCategory      string            `json:"action_category"`
	PlanDigest          string            `json:"plan_digest"`
	ExpiresAt           store.Time        `json:"expires_at"`
	Message             string            `json:"message"`
}

func requestConfirmation() *Definition {
	return define("request_confirmation", handler[confirmArgs, confirmResult]{
		carry: func(a confirmArgs) carried {
			return carried{verb: a.ToolName, verbAt: "/tool_name", arguments: a.ToolArguments, argumentsAt: "/tool_arguments",
				description: a.ActionDescription, answer: confirmationRequested}
		},
	})
}

func confirmationRequested(parked governance.Parked) any {
	return confirmResult{Status: "confirmation_requested", DeferredOperationID: parked.DeferredOperationID,
		ActionCategory: parked.ActionCategory, PlanDigest: parked.PlanDigest, ExpiresAt: parked.ExpiresAt, Message: parked.Message}
}

type previewArgs struct {
	Verb      string          `json:"verb"`
	Arguments json.RawMessage `json:"arguments"`
}

type previewResult struct {
	Verb         string              `json:"verb"`
	Effects      []governance.Effect `json:"effects"`
	Touched      governance.Touched  `json:"touched"`
	Irreversible []string            `json:"irreversible"`
	Policy       previewPolicy       `json:"policy"`
	Refusals     []*schema.Error     `json:"refusals"`
	PlanDigest   *string             `json:"plan_digest"`
	ExpiresAt    *store.Time         `json:"expires_at"`
}

type previewPolicy struct {
	ActionCategory string              `json:"action_category"`
	Verdict        *governance.Verdict `json:"verdict"`
}

func platformPreview() *Definition {
	return define("platform_preview", handler[previewArgs, previewResult]{
		preview: func(a previewArgs) carried {
			return carried{verb: a.Verb, verbAt: "/verb", arguments: a.Arguments, argumentsAt: "/arguments"}
		},
	})
}

type callVerbArgs struct {
	Verb      string          `json:"verb"`
	Arguments json.RawMessage `json:"arguments"`
}

// callVerbResult is whatever the called verb answers.
type callVerbResult struct{}

func platformCallVerb() *Definition {
	return define("platform_call_verb", handler[callVerbArgs, callVerbResult]{
		call: func(a callVerbArgs) carried {
			return carried{verb: a.Verb, verbAt: "/verb", arguments: a.Arguments, argumentsAt: "/arguments"}
		},
	})
}

type getOperationArgs struct {
	DeferredOperationID store.OperationID `json:"deferred_operation_id"`
}

type getOperationResult struct {
	Operation governance.OperationView `json:"operation"`
}

func platformGetOperation() *Definition {
	return define("platform_get_operation", handler[getOperationArgs, getOperationResult]{
		wait: func(ctx context.Context, p *Platform, c Caller, a getOperationArgs) (r getOperationResult, err error) {
			var o store.Operation
			var credential *store.AuditEntry
			err = p.DB.View(ctx, func(v *store.View) error {
				o, err = store.OperationByID(ctx, v, c.AccountID, a.DeferredOperationID)
				if errors.Is(err, store.ErrNoRow) || (err == nil && (!governance.Readable(o, c) || !p.reaches(c, o))) {
					return schema.Errorf(schema.NotFound, "operation not found")
				}
				if err != nil {
					return fmt.Errorf("look for the operation: %w", err)
				}
				r.Operation, credential, err = p.seen(o, c)
				return err
			})
			if err == nil && credential != nil {
				err = p.handOut(ctx, o, c, *credential)
			}
			if err != nil {
				return getOperationResult{}, err
			}
			return r, nil
		},
	})
}

// handOut records that an operation's result, with the credential in it, is read once more: before it is handed out, and not
// where policy has come to forbid it.
func (p *Platform) handOut(ctx context.Context, o store.Operation, c Caller, row store.AuditEntry) error {
	again, err := p.called(o, c)
	if err == nil {
		err = again.validate()
	}
	if err != nil {
		return err
	}
	return p.DB.Update(ctx, func(tx *store.Tx) error {
		verdict, err := again.gate(ctx, &tx.View)
		if err != nil {
			return err
		}
		if verdict == governance.Block {
			return again.blocked()
		}
		tx.Act(store.Actor{Kind: c.Kind, ID: c.ID, Verb: "platform_get_operation", OperationID: string(o.ID), CorrelationID: tx.NewID()})
		row.AccountID = o.AccountID
		if _, err := tx.Audit(ctx, row); err != nil {
			return fmt.Errorf("record the reading of a credential: %w", err)
		}
		return again.notify(ctx, tx)
	})
}

// reaches says whether a caller's credential is one that an operation may be read with: narrowed to some toolsets, it
// still learns what became of the calls that it can make.
func (p *Platform) reaches(c Caller, o store.Operation) bool {
	if c.Toolsets == nil || slices.Contains(c.Toolsets, "governance") {
		return true
	}
	d, there := p.Lookup(o.Verb)
	return there && slices.Contains(c.Toolsets, d.Verb.Toolset)
}

// seen is an operation as a caller may see it: its result is for whoever asked, and not for a credential of theirs that is
// narrowed to less than the call. Where a credential stands in that result, the audit row of handing it out comes with it.
func (p *Platform) seen(o store.Operation, c Caller) (governance.OperationView, *store.AuditEntry, error) {
	d, there := p.Lookup(o.Verb)
	if !there || (&call{p: p, d: d, caller: c}).authorise() != nil {
		c = Caller{}
	}
	view, err := p.Governance.Seen(o, c)
	if err != nil || view.Result == nil || d.credential == nil {
		return view, nil, err
	}
	row, holds, err := d.credential(view.Result)
	if err != nil || !holds {
		return view, nil, err
	}
	return view, &row, nil
}

// listed is an operation as a list shows it: a credential is read one by one.
func (p *Platform) listed(o store.Operation, c Caller) (governance.OperationView, error) {
	view, credential, err := p.seen(o, c)
	if credential != nil {
		view.Result = nil
	}
	return view, err
}

type listOperationsArgs struct {
	Status *string `json:"status"`
	Limit  int     `json:"limit"`
	Cursor *string `json:"cursor"`
}

type listOperationsResult struct {
	Operations []governance.OperationView `json:"operations"`
	Page
}

func platformListOperations() *Definition {
	return define("platform_list_operations", handler[listOperationsArgs, listOperationsResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listOperationsArgs) (r listOperationsResult, err error) {
			status := orEmpty(a.Status)
			all, err := store.Operations(ctx, v, c.AccountID, status, "")
			if err != nil {
				return r, fmt.Errorf("list operations: %w", err)
			}
			own := []store.Operation{}
			for _, o := range all {
				if governance.Readable(o, c) {
					own = append(own, o)
				}
			}
			own, r.Page, err = page("platform_list_operations", status, a.Limit, orEmpty(a.Cursor), own,
				func(o store.Operation) string { return string(o.ID) })
			r.Operations = make([]governance.OperationView, len(own))
			for i := range own {
				if err == nil {
					r.Operations[i], err = p.listed(own[i], c)
				}
			}
			return r, err
		},
	})
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
