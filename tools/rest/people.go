package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
)

// surface is people's surface: what waits for a decision, and policies. It reads for people, and what decides is signed by
// a human key, which package tools verifies; the credential alone decides nothing.
type surface struct {
	platform  *tools.Platform
	documents documents
}

// documents are what the surface's queries and bodies declare.
type documents struct {
	operationsQuery, decision, policyQuery, policy, unsetPolicy *schema.Document
}

// Shapes of the surface's queries and bodies, in the subset of the verbs' schemas: the OpenAPI document shows them too.
const (
	signatureShape = `{"type": "string", "description": "Ed25519 signature by the human key, in Base64.", "pattern": "^[A-Za-z0-9+/]{86}==$"}`
	scopeMembers   = `"role": {"type": "string", "description": "Only for callers of this role.", "enum": ["viewer", "operator", "admin", "agent", "platform"]},
		"user_id": {"type": "string", "description": "Only for this person.", "format": "uuid"},
		"token_id": {"type": "string", "description": "Only for this token.", "format": "uuid"},
		"cluster_id": {"type": "string", "description": "Only for calls on this cluster.", "format": "uuid"},
		"network_id": {"type": "string", "description": "Only for calls on this network.", "format": "uuid"}`
	scopeShape   = `{"type": "object", "description": "Narrows the policy; one key at most.", "additionalProperties": false, "properties": {` + scopeMembers + `}}`
	verdictShape = `{"type": "string", "description": "What calls of the category need.", "enum": ["auto_approve", "notify_and_proceed", "require_approval", "block"]}`

	chainShape = `{"type": "object", "description": "Of the statement that was prepared: the end of the audit chain then, which is signed with it.",
		"required": ["rows", "hash"], "additionalProperties": false, "properties": {
		"rows": {"type": "integer", "description": "How many rows it had.", "minimum": 0},
		"hash": {"type": "string", "description": "Hash of the last row.", "maxLength": 64}}}`

	operationsQueryShape = `{"type": "object", "additionalProperties": false, "properties": {
		"status": {"type": "string", "description": "Only operations in this status.", "enum":
			["pending", "approved", "executing", "completed", "failed", "rejected", "expired", "cancelled", "stale"]},
		"limit": {"type": "integer", "description": "Rows of one page.", "default": 100, "minimum": 1, "maximum": 500,
			"x-refusal": "limit must be a positive integer"},
		"cursor": {"type": "string", "description": "Where the list goes on: next_cursor of an earlier answer."}}}`
	decisionShape = `{"type": "object", "required": ["plan_digest", "signature"], "additionalProperties": false, "properties": {
		"plan_digest": {"type": "string", "description": "Digest of the plan that was shown."},
		"signature": ` + signatureShape + `,
		"comment": {"type": "string", "description": "Why, for the record; it is part of what is signed.", "default": "", "maxLength": 500}}}`
	policyQueryShape = `{"type": "object", "additionalProperties": false, "properties": {
		"verdict": {"type": "string", "description": "Prepare the statement that sets this verdict, or takes the policy back (unset).",
			"enum": ["auto_approve", "notify_and_proceed", "require_approval", "block", "unset"]}, ` + scopeMembers + `}}`
	policyShape = `{"type": "object", "required": ["verdict", "policy_id", "signature"], "additionalProperties": false, "properties": {
		"verdict": ` + verdictShape + `, "scope": ` + scopeShape + `,
		"policy_id": {"type": "string", "description": "Of the statement that was prepared.", "format": "uuid"},
		"chain": ` + chainShape + `,
		"signature": ` + signatureShape + `}}`
	unsetPolicyShape = `{"type": "object", "required": ["signature"], "additionalProperties": false, "properties": {
		"scope": ` + scopeShape + `, "chain": ` + chainShape + `, "signature": ` + signatureShape + `}}`
)

func readDocuments() (d documents, err error) {
	for _, each := range []struct {
		into  **schema.Document
		shape string
	}{
		{&d.operationsQuery, operationsQueryShape},
		{&d.decision, decisionShape},
		{&d.policyQuery, policyQueryShape},
		{&d.policy, policyShape},
		{&d.unsetPolicy, unsetPolicyShape},
	} {
		if *each.into, err = schema.NewDocument(json.RawMessage(each.shape)); err != nil {
			return d, err
		}
	}
	return d, nil
}

// Who may do what on the surface (contract 16). A viewer reads policies; operators see and decide operations; policies
// are an administrator's.
var (
	readers   = []string{governance.RoleViewer, governance.RoleOperator, governance.RoleAdmin}
	deciders  = []string{governance.RoleOperator, governance.RoleAdmin}
	governors = []string{governance.RoleAdmin}
)

// toolset is where the contract has the verbs about operations and policies: a token that is narrowed to others reaches
// neither.
const toolset = "governance"

// person refuses whoever is no person, or one without the role, or with a token that is narrowed to something else.
func person(c tools.Caller, roles []string, permission string) error {
	switch {
	case !c.Human():
		return schema.Errorf(schema.PermissionDenied, "a human credential is required")
	case !slices.Contains(roles, c.Role):
		return schema.Errorf(schema.PermissionDenied, "permission denied: %s required", permission)
	case c.Toolsets != nil && !slices.Contains(c.Toolsets, toolset):
		return schema.Errorf(schema.PermissionDenied, "permission denied: the token does not reach toolset %s", toolset)
	}
	return nil
}

// deciding is person for what changes something.
func deciding(c tools.Caller, roles []string, permission string) error {
	if err := person(c, roles, permission); err != nil {
		return err
	}
	if c.ReadOnly {
		return schema.Errorf(schema.PermissionDenied, "permission denied: this credential or session is read only")
	}
	return nil
}

// ask asks package tools, which takes requests as JSON.
func (s *surface) ask(ctx context.Context, c tools.Caller, request string, in any) (any, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode a request: %w", err)
	}
	return s.platform.People(ctx, c.AccountID, request, raw)
}

// query reads a query against its declaration.
func query[T any](r *http.Request, d *schema.Document) (in T, err error) {
	raw, err := queryArguments(r.URL.RawQuery, d.Shape())
	if err != nil {
		return in, err
	}
	return declared[T](raw, d)
}

// content reads a body against its declaration.
func content[T any](w http.ResponseWriter, r *http.Request, d *schema.Document) (in T, err error) {
	raw, err := body(w, r)
	if err != nil {
		return in, err
	}
	return declared[T](raw, d)
}

func declared[T any](raw json.RawMessage, d *schema.Document) (in T, err error) {
	normalised, err := d.Validate(raw)
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(normalised, &in); err != nil {
		return in, fmt.Errorf("decode a request: %w", err)
	}
	return in, nil
}

func (s *surface) operations(_ http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	if err := person(c, deciders, "approve"); err != nil {
		return answer{}, err
	}
	in, err := query[tools.OperationsRequest](r, s.documents.operationsQuery)
	if err != nil {
		return answer{}, err
	}
	return encoded(s.ask(r.Context(), c, tools.PeopleOperations, in))
}

func (s *surface) operation(_ http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	if err := person(c, deciders, "approve"); err != nil {
		return answer{}, err
	}
	return encoded(s.ask(r.Context(), c, tools.PeopleOperation, tools.OperationRequest{ID: r.PathValue("id")}))
}

func (s *surface) approve(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	return s.decide(w, r, c, governance.Approve)
}

func (s *surface) reject(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	return s.decide(w, r, c, governance.Reject)
}

// decide hands a signed decision on; once taken it is carried out to its end, also where the client goes away.
func (s *surface) decide(w http.ResponseWriter, r *http.Request, c tools.Caller, decision string) (answer, error) {
	if err := deciding(c, deciders, decision); err != nil {
		return answer{}, err
	}
	d, err := content[governance.Decision](w, r, s.documents.decision)
	if err != nil {
		return answer{}, err
	}
	d.OperationID, d.Decision = store.OperationID(r.PathValue("id")), decision
	return encoded(s.ask(context.WithoutCancel(r.Context()), c, tools.PeopleDecide, d))
}

func (s *surface) policies(_ http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	if err := person(c, readers, "platform.policies.read"); err != nil {
		return answer{}, err
	}
	return encoded(s.ask(r.Context(), c, tools.PeoplePolicies, nil))
}

// PolicyAnswer is what applies to one action category. Statement is what a person signs to change it as the query says;
// null where the query names no verdict.
type PolicyAnswer struct {
	ActionCategory string                      `json:"action_category"`
	Policies       []governance.PolicyView     `json:"policies"`
	Statement      *governance.PolicyStatement `json:"statement"`
}

// preparation is the query of a policy: the verdict that is to be, and its scope.
type preparation struct {
	Verdict string `json:"verdict"`
	governance.Scope
}

func (s *surface) policy(_ http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	if err := person(c, readers, "platform.policies.read"); err != nil {
		return answer{}, err
	}
	in, err := query[preparation](r, s.documents.policyQuery)
	if err != nil {
		return answer{}, err
	}
	category := r.PathValue("category")
	all, err := s.ask(r.Context(), c, tools.PeoplePolicies, nil)
	if err != nil {
		return answer{}, err
	}
	listed, ok := all.(tools.PoliciesAnswer)
	if !ok {
		return answer{}, fmt.Errorf("list policies: answered %T", all)
	}
	a := PolicyAnswer{ActionCategory: category, Policies: []governance.PolicyView{}}
	names := []string{}
	for _, p := range listed.Policies {
		names = append(names, p.ActionCategory)
		if p.ActionCategory == category {
			a.Policies = append(a.Policies, p)
		}
	}
	if len(a.Policies) == 0 {
		return answer{}, noCategory(category, names)
	}
	if in.Verdict != "" {
		if err := person(c, governors, "policies"); err != nil {
			return answer{}, err
		}
		if a.Statement, err = s.prepare(r.Context(), c, category, in.Verdict, in.Scope); err != nil {
			return answer{}, err
		}
	}
	return encoded(a, nil)
}

func noCategory(category string, names []string) error {
	candidates := []string{}
	if near := schema.Nearest(category, names); near != "" {
		candidates = append(candidates, near)
	}
	return schema.Errorf(schema.NotFound, "unknown action category %s", governance.Quote(category)).WithDetail("candidates", candidates)
}

// prepare makes the statement that a person is to sign.
func (s *surface) prepare(ctx context.Context, c tools.Caller, category, verdict string, scope governance.Scope) (*governance.PolicyStatement, error) {
	prepared, err := s.ask(ctx, c, tools.PeoplePreparePolicy, tools.PreparePolicyRequest{ActionCategory: category, Verdict: verdict, Scope: scope})
	if err != nil {
		return nil, err
	}
	statement, ok := prepared.(governance.PolicyStatement)
	if !ok {
		return nil, fmt.Errorf("prepare a policy: answered %T", prepared)
	}
	statement.UserID = c.UserID // whoever asks signs, where several have keys
	return &statement, nil
}

// policyBody is a signed policy.
type policyBody struct {
	Verdict   string           `json:"verdict"`
	Scope     governance.Scope `json:"scope"`
	PolicyID  store.PolicyID   `json:"policy_id"`
	Chain     *store.Head      `json:"chain"`
	Signature []byte           `json:"signature"`
}

func (s *surface) setPolicy(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	if err := deciding(c, governors, "policies"); err != nil {
		return answer{}, err
	}
	in, err := content[policyBody](w, r, s.documents.policy)
	if err != nil {
		return answer{}, err
	}
	return s.putPolicy(r, c, in)
}

func (s *surface) unsetPolicy(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
	if err := deciding(c, governors, "policies"); err != nil {
		return answer{}, err
	}
	in, err := content[policyBody](w, r, s.documents.unsetPolicy)
	if err != nil {
		return answer{}, err
	}
	in.Verdict = governance.Unset
	return s.putPolicy(r, c, in)
}

// putPolicy sets what a person has signed. The statement is made again from the request: nothing else counts as signed.
func (s *surface) putPolicy(r *http.Request, c tools.Caller, in policyBody) (answer, error) {
	statement, err := s.prepare(r.Context(), c, r.PathValue("category"), in.Verdict, in.Scope)
	if err != nil {
		return answer{}, err
	}
	if in.PolicyID != "" {
		statement.PolicyID = in.PolicyID
	}
	statement.Chain = in.Chain
	return encoded(s.ask(r.Context(), c, tools.PeopleSetPolicy, governance.PolicyInput{Policy: *statement, Signature: in.Signature}))
}
