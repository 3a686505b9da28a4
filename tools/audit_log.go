package tools

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

type auditLogArgs struct {
	ResourceType string  `json:"resource_type"`
	Action       string  `json:"action"`
	Limit        int     `json:"limit"`
	Cursor       *string `json:"cursor"`
}

type auditActor struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

type auditRow struct {
	ID           store.AuditEntryID `json:"id"`
	Action       string             `json:"action"`
	ResourceType string             `json:"resource_type"`
	ResourceID   string             `json:"resource_id"`
	Actor        auditActor         `json:"actor"`
	Verb         *string            `json:"verb"`
	OldValues    store.Object       `json:"old_values"`
	NewValues    store.Object       `json:"new_values"`
	OperationID  *string            `json:"operation_id"`
	CreatedAt    store.Time         `json:"created_at"`
	Hash         string             `json:"hash"`
	PreviousHash string             `json:"previous_hash"`
}

type auditLogResult struct {
	Entries []auditRow `json:"entries"`
	Page
}

func platformAuditLog() *Definition {
	return define("platform_audit_log", handler[auditLogArgs, auditLogResult]{
		read: func(ctx context.Context, _ *Platform, v *store.View, c Caller, a auditLogArgs) (r auditLogResult, err error) {
			filter, err := a.filter(c)
			if err != nil {
				return r, err
			}
			before, sum, err := auditPlace(filter, orEmpty(a.Cursor))
			if err != nil {
				return r, err
			}
			rows, count, err := store.AuditPage(ctx, v, filter, before, a.Limit+1)
			if err != nil {
				return r, err
			}
			r.Count, r.HasMore, r.Entries = count, len(rows) > a.Limit, []auditRow{}
			for _, e := range rows[:min(len(rows), a.Limit)] {
				r.Entries = append(r.Entries, auditRowOf(e))
			}
			if r.HasMore {
				r.NextCursor, err = place{Sum: sum, Key: strconv.FormatInt(rows[a.Limit-1].Sequence, 10)}.spelt()
			}
			return r, err
		},
	})
}

// filter narrows the record to what the caller asks for and may see.
func (a auditLogArgs) filter(c Caller) (store.AuditFilter, error) {
	f := store.AuditFilter{AccountID: c.AccountID, Action: a.Action}
	if c.Human() && slices.Contains(c.Granted, governance.AuditAll) {
		f.AccountID = ""
	}
	if a.ResourceType == "" {
		return f, nil
	}
	for _, full := range governance.ResourceTypes() {
		if _, bare, _ := strings.Cut(full, "::"); full == a.ResourceType || bare == a.ResourceType {
			f.ResourceTypes = append(f.ResourceTypes, full)
		}
	}
	if f.ResourceTypes == nil {
		return f, schema.InvalidArgument("/resource_type", a.ResourceType, "unknown resource type %s", shortQuote(a.ResourceType)).
			WithCandidates(governance.NearResourceTypes(a.ResourceType))
	}
	return f, nil
}

// auditPlace reads a cursor: the record is long, so the store goes on at a row's sequence.
func auditPlace(f store.AuditFilter, cursor string) (before int64, sum []byte, err error) {
	sum, err = cursorSum("platform_audit_log", f)
	if err != nil || cursor == "" {
		return 0, sum, err
	}
	c, ok := readCursor(cursor)
	before, notNumber := strconv.ParseInt(c.Key, 10, 64)
	if !ok || notNumber != nil || before < 1 || string(c.Sum) != string(sum) {
		return 0, nil, errCursor(cursor)
	}
	return before, sum, nil
}

func auditRowOf(e store.AuditEntry) auditRow {
	return auditRow{ID: e.ID, Action: e.Action, ResourceType: e.ResourceType, ResourceID: e.ResourceID, Actor: auditActor{e.Actor.Kind, e.Actor.ID},
		Verb: orNull(e.Actor.Verb), OldValues: e.Old, NewValues: e.New, OperationID: orNull(e.Actor.OperationID), CreatedAt: e.CreatedAt,
		Hash: e.Hash, PreviousHash: e.PreviousHash}
}
