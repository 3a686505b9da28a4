package tools

import (
	"context"
	"slices"
	"strings"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

type listPoliciesArgs struct {
	ActionCategory string  `json:"action_category"`
	Limit          int     `json:"limit"`
	Cursor         *string `json:"cursor"`
}

type policyRow struct {
	ActionCategory string            `json:"action_category"`
	Verdict        string            `json:"verdict"`
	Source         string            `json:"source"`
	Scope          *governance.Scope `json:"scope"`
	Floor          *string           `json:"floor"`
	Verbs          []string          `json:"verbs"`
}

type listPoliciesResult struct {
	Policies []policyRow `json:"policies"`
	Page
}

func platformListPolicies() *Definition {
	return define("platform_list_policies", handler[listPoliciesArgs, listPoliciesResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a listPoliciesArgs) (r listPoliciesResult, err error) {
			r.Policies = []policyRow{}
			all, err := p.Governance.Policies(ctx, v, c.AccountID)
			if err != nil {
				return r, err
			}
			for _, view := range all {
				if a.ActionCategory == "" || view.ActionCategory == a.ActionCategory {
					r.Policies = append(r.Policies, p.policyRow(view))
				}
			}
			if len(r.Policies) == 0 {
				return r, schema.Errorf(schema.NotFound, "action category not found: %s", shortQuote(a.ActionCategory)).
					WithDetail("candidates", governance.NearCategories(a.ActionCategory))
			}
			r.Policies, r.Page, err = page("platform_list_policies", a.ActionCategory, a.Limit, orEmpty(a.Cursor), r.Policies, policyRow.key)
			return r, err
		},
	})
}

func (p *Platform) policyRow(view governance.PolicyView) policyRow {
	row := policyRow{ActionCategory: view.ActionCategory, Verdict: view.Verdict, Source: view.Source, Verbs: p.verbsOf(view.ActionCategory)}
	if view.Scope != (governance.Scope{}) {
		row.Scope = &view.Scope
	}
	if strings.HasSuffix(view.ActionCategory, "_force") {
		row.Floor = orNull(string(governance.RequireApproval))
	}
	return row
}

func (r policyRow) key() string {
	if r.Scope == nil {
		return r.ActionCategory
	}
	return r.ActionCategory + " " + r.Scope.Role + string(r.Scope.UserID) + string(r.Scope.TokenID) + string(r.Scope.ClusterID) + string(r.Scope.NetworkID)
}

// verbsOf are the names of the verbs that an action category gates.
func (p *Platform) verbsOf(category string) []string {
	verbs := []string{}
	for _, v := range p.gatedBy(category) {
		verbs = append(verbs, v.Name)
	}
	return verbs
}

// gatedBy are the verbs that an action category gates, by name.
func (p *Platform) gatedBy(category string) (verbs []*schema.Verb) {
	for _, d := range p.order {
		if d.Verb.Category == category || slices.Contains(d.Verb.Escalates, category) {
			verbs = append(verbs, d.Verb)
		}
	}
	return verbs
}
