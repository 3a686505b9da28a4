package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
	"powernode/tools/rest"
	"powernode/tools/toolstest"
)

// house is a platform behind its REST face, with a token for each kind of caller: its name.
type house struct {
	*toolstest.Env
	url     string
	callers map[string]tools.Caller
	places  *tools.Places
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{Env: toolstest.New(t), places: &tools.Places{}}
	h.callers = map[string]tools.Caller{"agent": h.Caller, "admin": governance.PersonCaller(h.Person),
		"operator": h.AddPerson(t, "op@example.org", governance.RoleOperator), "viewer": h.AddPerson(t, "view@example.org", governance.RoleViewer)}
	reader := h.callers["admin"]
	reader.ReadOnly = true
	h.callers["reader"] = reader
	narrow := h.callers["admin"]
	narrow.Toolsets = []string{"sdwan"}
	h.callers["narrow"] = narrow
	face := &rest.Face{Platform: h.Platform, Version: "test", Log: h.Platform.Log, Authenticate: h.authenticate, Places: h.places}
	handler, err := face.Handler()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(face.SameOrigin(handler, func(name string) bool { return name == "powernode.example" }))
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *house) authenticate(_ context.Context, token string) (tools.Caller, error) {
	c, ok := h.callers[token]
	if !ok {
		return c, governance.ErrNoCredential
	}
	return c, nil
}

// request is one HTTP request; its zero values are an agent's without a body.
type request struct {
	method, path, token, body string
	header                    http.Header
	host                      string
}

// reply is what came back.
type reply struct {
	status int
	header http.Header
	raw    []byte
	body   struct {
		Success *bool            `json:"success"`
		Data    toolstest.Object `json:"data"`
		Error   *schema.Error    `json:"error"`
	}
}

// code is the refusal's code; "" is a success.
func (r reply) code() schema.Code {
	if r.body.Error == nil {
		return ""
	}
	return r.body.Error.Code
}

func (h *house) do(t testing.TB, in request) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), in.method, h.url+in.path, strings.NewReader(in.body))
	if err != nil {
		t.Fatal(err)
	}
	if in.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if in.token != "" {
		r.Header.Set("Authorization", "Bearer "+in.token)
	}
	for name, values := range in.header {
		r.Header[name] = values
	}
	if in.host != "" {
		r.Host = in.host
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() // it was read
	out := reply{status: answer.StatusCode, header: answer.Header}
	if out.raw, err = io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.raw, &out.body); err != nil {
		t.Fatalf("%s %s: %d %s: %v", in.method, in.path, out.status, out.raw, err)
	}
	return out
}

// call posts to a verb as somebody.
func (h *house) call(t testing.TB, token, verb, body string) reply {
	t.Helper()
	return h.do(t, request{method: http.MethodPost, path: "/api/v1/verbs/" + verb, token: token, body: body})
}

// template makes a template and answers its id.
func (h *house) template(t testing.TB) string {
	t.Helper()
	platform := h.Call(t, "system_list_platforms", `{}`)["platforms"].([]any)[0].(toolstest.Object)["id"].(string)
	return h.Call(t, "system_create_template", toolstest.Object{"name": "t", "node_platform_id": platform})["template"].(toolstest.Object)["id"].(string)
}

func TestVerbIsCalledWithTheBodyAsItsArguments(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	made := h.call(t, "agent", "system_sdwan_create_network", `{"name": "a"}`)
	if made.status != http.StatusOK || made.body.Success == nil || !*made.body.Success {
		t.Fatalf("create: %d %s", made.status, made.raw)
	}
	toolstest.Has(t, toolstest.Object{"network": toolstest.Object{"name": "a"}}, made.body.Data)
	if got := made.header.Get("Cache-Control") + " " + made.header.Get("Content-Type"); got != "no-store application/json" {
		t.Errorf("headers: %s", got)
	}
	for _, spelt := range []string{"platform_whoami", "platform.platform_whoami"} {
		if got := h.call(t, "viewer", spelt, ``); got.status != http.StatusOK || got.body.Data["caller"] == nil {
			t.Errorf("%s: %d %s", spelt, got.status, got.raw)
		}
	}
	parked := h.call(t, "agent", "system_sdwan_delete_network",
		`{"network_id": "`+made.body.Data["network"].(toolstest.Object)["id"].(string)+`"}`)
	if parked.status != http.StatusAccepted || parked.body.Data["pending"] != true {
		t.Errorf("delete: %d %s, want it parked", parked.status, parked.raw)
	}
}

func TestEachCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.call(t, "agent", "system_sdwan_create_network", `{"name": "taken"}`)
	h.SetPolicy(t, "system.node_create", governance.Block, governance.Scope{})
	const absent = "01890a5d-ac96-774b-bcce-b302099a8057"
	template := h.template(t)
	for _, tt := range []struct {
		name, token, verb, body string
		status                  int
		code                    schema.Code
	}{
		{"a misspelt key", "agent", "system_sdwan_create_network", `{"nam": "x"}`, 400, schema.InvalidArguments},
		{"a key twice", "agent", "system_sdwan_create_network", `{"name": "x", "name": "y"}`, 400, schema.InvalidArguments},
		{"an array", "agent", "system_sdwan_create_network", `["x"]`, 400, schema.InvalidArguments},
		{"no JSON", "agent", "system_sdwan_create_network", `name=x`, 400, schema.InvalidArguments},
		{"two objects", "agent", "system_sdwan_create_network", `{"name": "x"}{}`, 400, schema.InvalidArguments},
		{"bytes that are no UTF-8", "agent", "system_sdwan_create_network", "{\"name\": \"\xff\"}", 400, schema.InvalidArguments},
		{"an id that is not there", "agent", "system_sdwan_get_network", `{"network_id": "` + absent + `"}`, 404, schema.NotFound},
		{"a name that is taken", "agent", "system_sdwan_create_network", `{"name": "taken"}`, 409, schema.Conflict},
		{"a role without the permission", "viewer", "system_sdwan_create_network", `{"name": "x"}`, 403, schema.PermissionDenied},
		{"a token that is read only", "reader", "system_sdwan_create_network", `{"name": "x"}`, 403, schema.PermissionDenied},
		{"a blocked action", "agent", "system_create_node", `{"name": "x", "template_id": "` + template + `"}`, 403, schema.BlockedByPolicy},
	} {
		before := h.Revision(t)
		got := h.call(t, tt.token, tt.verb, tt.body)
		if got.status != tt.status || got.code() != tt.code || got.body.Data != nil || *got.body.Success {
			t.Errorf("%s: %d %s, want %d %s", tt.name, got.status, got.raw, tt.status, tt.code)
		}
		if after := h.Revision(t); after != before {
			t.Errorf("%s: the revision moved", tt.name)
		}
	}
}

func TestUnknownVerbAndPathAreNotFound(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	got := h.call(t, "agent", "platform_whoam", `{}`)
	if got.status != http.StatusNotFound || got.code() != schema.NotFound {
		t.Fatalf("%d %s", got.status, got.raw)
	}
	if diff := cmp.Diff([]any{"platform_whoami"}, got.body.Error.Details["candidates"]); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	for _, path := range []string{"/api/v1/", "/api/v1/verbs", "/api/v1/verbs/", "/api/v1/nodes"} {
		if got := h.do(t, request{method: http.MethodGet, path: path, token: "agent"}); got.status != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", path, got.status)
		}
	}
}

func TestNothingIsAnsweredWithoutACredential(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, tt := range []struct{ name, method, path, authorization string }{
		{"no header", "POST", "/api/v1/verbs/platform_whoami", ""},
		{"an unknown token", "POST", "/api/v1/verbs/platform_whoami", "Bearer nobody"},
		{"another scheme", "POST", "/api/v1/verbs/platform_whoami", "Basic YWdlbnQ6"},
		{"an empty token", "POST", "/api/v1/verbs/platform_whoami", "Bearer "},
		{"no scheme", "POST", "/api/v1/verbs/platform_whoami", "agent"},
		{"an unknown verb", "POST", "/api/v1/verbs/none", ""},
		{"an unknown path", "GET", "/api/v1/none", ""},
		{"a method that there is not", "DELETE", "/api/v1/operations", ""},
		{"operations", "GET", "/api/v1/operations", ""},
		{"policies", "GET", "/api/v1/policies", ""},
		{"the audit log", "GET", "/api/v1/audit_logs", ""},
	} {
		header := http.Header{}
		if tt.authorization != "" {
			header.Set("Authorization", tt.authorization)
		}
		got := h.do(t, request{method: tt.method, path: tt.path, header: header})
		if got.status != http.StatusUnauthorized || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") || got.code() != schema.PermissionDenied {
			t.Errorf("%s: %d %s, want 401 with its challenge", tt.name, got.status, got.raw)
		}
	}
	twice := h.do(t, request{method: "POST", path: "/api/v1/verbs/platform_whoami", header: http.Header{"Authorization": {"Bearer agent", "Bearer admin"}}})
	if twice.status != http.StatusUnauthorized {
		t.Errorf("two credentials: %d, want 401", twice.status)
	}
}

func TestWhatIsNoCallIsRefused(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	const whoami = "/api/v1/verbs/platform_whoami"
	for _, tt := range []struct {
		name string
		in   request
		want int
	}{
		{"another method", request{method: "GET", path: whoami}, http.StatusMethodNotAllowed},
		{"a query", request{method: "POST", path: whoami + "?name=a"}, http.StatusBadRequest},
		{"another content type", request{method: "POST", path: whoami, body: "{}", header: http.Header{"Content-Type": {"text/plain"}}}, http.StatusUnsupportedMediaType},
		{"a form", request{method: "POST", path: whoami, body: "a=b", header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}, http.StatusUnsupportedMediaType},
		{"another character set", request{method: "POST", path: whoami, body: "{}", header: http.Header{"Content-Type": {"application/json; charset=latin1"}}}, http.StatusUnsupportedMediaType},
		{"a body without a type", request{method: "POST", path: whoami, body: "{}", header: http.Header{"Content-Type": nil}}, http.StatusUnsupportedMediaType},
		{"a body above the limit", request{method: "POST", path: whoami, body: `{"a": "` + strings.Repeat("x", schema.MaxArguments) + `"}`}, http.StatusRequestEntityTooLarge},
		{"a call id with a space", request{method: "POST", path: whoami, header: http.Header{rest.CallIDHeader: {"a b"}}}, http.StatusBadRequest},
		{"another page's origin", request{method: "POST", path: whoami, header: http.Header{"Origin": {"http://evil.example"}}}, http.StatusForbidden},
		{"an opaque origin", request{method: "POST", path: whoami, header: http.Header{"Origin": {"null"}}}, http.StatusForbidden},
		{"a name that somebody leads here", request{method: "POST", path: whoami, host: "evil.example:80", header: http.Header{"Origin": {"http://evil.example:80"}}}, http.StatusForbidden},
		{"a name that somebody leads here, without an origin", request{method: "POST", path: whoami, host: "evil.example:80"}, http.StatusForbidden},
	} {
		tt.in.token = "agent"
		if got := h.do(t, tt.in); got.status != tt.want || got.body.Error == nil {
			t.Errorf("%s: %d %.300s, want %d", tt.name, got.status, got.raw, tt.want)
		}
	}
	for name, in := range map[string]request{
		"localhost":         {host: "localhost:7", header: http.Header{"Origin": {"http://localhost:7"}}},
		"an address":        {host: "[::1]:7", header: http.Header{"Origin": {"http://[::1]:7"}}},
		"a name of ours":    {host: "powernode.example", header: http.Header{"Origin": {"http://powernode.example"}}},
		"UTF-8 spelt out":   {body: "{}", header: http.Header{"Content-Type": {"application/json; charset=UTF-8"}}},
		"no body, a type":   {header: http.Header{"Content-Type": {"application/json"}}},
		"a call id":         {header: http.Header{rest.CallIDHeader: {"a-1"}}},
		"no body, no types": {},
	} {
		in.method, in.path, in.token = "POST", whoami, "agent"
		if got := h.do(t, in); got.status != http.StatusOK {
			t.Errorf("%s: %d %s, want 200", name, got.status, got.raw)
		}
	}
}

func TestCallUnderOneIDIsDoneOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	create := func(token, id, name string) reply {
		return h.do(t, request{method: "POST", path: "/api/v1/verbs/system_sdwan_create_network", token: token, body: `{"name": "` + name + `"}`,
			header: http.Header{rest.CallIDHeader: {id}}})
	}
	first, again := create("agent", "one", "a"), create("agent", "one", "a")
	if first.status != http.StatusOK || !bytes.Equal(first.raw, again.raw) {
		t.Errorf("sent again:\n%s\nat first:\n%s", again.raw, first.raw)
	}
	for name, other := range map[string]reply{"another id": create("agent", "two", "a"), "another credential": create("operator", "one", "a")} {
		if other.code() != schema.Conflict {
			t.Errorf("%s: %d %s, want a call of its own: the name is taken", name, other.status, other.raw)
		}
	}
	if got := create("agent", "one", "b"); got.status != http.StatusOK || bytes.Equal(got.raw, first.raw) {
		t.Errorf("the same id with another body: %d %s, want a call of its own", got.status, got.raw)
	}
}

func TestTemplateIsAppliedByTheSeedDocumentsPath(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	template := h.template(t)
	node := h.call(t, "agent", "system_create_node", `{"name": "a-1", "template_id": "`+template+`"}`).body.Data["node"].(toolstest.Object)["id"].(string)
	for _, tt := range []struct {
		name, body string
		status     int
		pointer    any
	}{
		{"no body", "", 200, nil},
		{"an empty object", " { } ", 200, nil},
		{"a dry run", `{"dry_run": true}`, 200, nil},
		{"another key", `{"force": true}`, 400, "/force"},
		{"the node in the body too", `{"node_id": "` + node + `"}`, 400, "/node_id"},
		{"a wrong type", `{"dry_run": "true"}`, 400, "/dry_run"},
		{"an array", `[]`, 400, ""},
		{"half an object", `{`, 400, ""},
		{"a comma too much", `{,"dry_run": true}`, 400, ""},
	} {
		got := h.do(t, request{method: "POST", path: "/api/v1/system/nodes/" + node + "/apply_template", token: "agent", body: tt.body})
		var pointer any
		if got.body.Error != nil {
			pointer = got.body.Error.Details["pointer"]
		}
		if got.status != tt.status || pointer != tt.pointer {
			t.Errorf("%s: %d at %v %s, want %d at %v", tt.name, got.status, pointer, got.raw, tt.status, tt.pointer)
		}
		if tt.status == 200 && got.body.Data["node_id"] != node {
			t.Errorf("%s: %s", tt.name, got.raw)
		}
	}
	if got := h.do(t, request{method: "POST", path: "/api/v1/system/nodes/none/apply_template", token: "agent"}); got.status != 400 {
		t.Errorf("no id: %d %s", got.status, got.raw)
	}
}

func TestOperationIsSeenAndDecidedByPeopleAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	network := h.Call(t, "system_sdwan_create_network", `{"name": "a"}`)["network"].(toolstest.Object)["id"].(string)
	id := h.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": network})
	at := "/api/v1/operations/" + string(id)
	signed := func(decision string) string {
		d := h.Decision(t, id, decision)
		body, err := json.Marshal(toolstest.Object{"plan_digest": d.PlanDigest, "signature": d.Signature})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	approve := signed(governance.Approve)
	for _, tt := range []struct {
		name string
		in   request
		want int
	}{
		{"an assistant lists", request{method: "GET", path: "/api/v1/operations", token: "agent"}, 403},
		{"an assistant reads", request{method: "GET", path: at, token: "agent"}, 403},
		{"an assistant approves with a signature", request{method: "POST", path: at + "/approve", token: "agent", body: approve}, 403},
		{"an assistant rejects", request{method: "POST", path: at + "/reject", token: "agent", body: signed(governance.Reject)}, 403},
		{"a viewer reads", request{method: "GET", path: at, token: "viewer"}, 403},
		{"a viewer approves", request{method: "POST", path: at + "/approve", token: "viewer", body: approve}, 403},
		{"a read-only token approves", request{method: "POST", path: at + "/approve", token: "reader", body: approve}, 403},
		{"a token of another toolset lists", request{method: "GET", path: "/api/v1/operations", token: "narrow"}, 403},
		{"a token of another toolset reads policies", request{method: "GET", path: "/api/v1/policies", token: "narrow"}, 403},
		{"a token of another toolset approves", request{method: "POST", path: at + "/approve", token: "narrow", body: approve}, 403},
		{"no signature", request{method: "POST", path: at + "/approve", token: "admin", body: `{"plan_digest": "x"}`}, 400},
		{"a signature of something else", request{method: "POST", path: at + "/approve", token: "admin", body: signed(governance.Reject)}, 403},
		{"a key too much", request{method: "POST", path: at + "/approve", token: "admin", body: strings.Replace(approve, "{", `{"decision": "approve", `, 1)}, 400},
		{"another plan", request{method: "POST", path: at + "/approve", token: "admin", body: strings.Replace(approve, "sha256:", "sha256:0", 1)}, 409},
		{"an operation that is not there", request{method: "GET", path: "/api/v1/operations/none", token: "admin"}, 404},
		{"an undeclared query", request{method: "GET", path: "/api/v1/operations?state=pending", token: "admin"}, 400},
		{"a status that there is not", request{method: "GET", path: "/api/v1/operations?status=new", token: "admin"}, 400},
	} {
		if got := h.do(t, tt.in); got.status != tt.want || got.body.Error == nil {
			t.Errorf("%s: %d %s, want %d", tt.name, got.status, got.raw, tt.want)
		}
	}
	for _, query := range []string{"limit=0", "limit=501", "limit=x", "limit=1.5", "cursor=x", "limit=1&limit=2"} {
		got := h.do(t, request{method: "GET", path: "/api/v1/operations?" + query, token: "operator"})
		if got.status != 400 || got.code() != schema.InvalidArguments {
			t.Errorf("operations with %s: %d %s, want 400", query, got.status, got.raw)
		}
	}
	listed := h.do(t, request{method: "GET", path: "/api/v1/operations?status=pending", token: "operator"})
	if rows, _ := listed.body.Data["operations"].([]any); len(rows) != 1 {
		t.Errorf("pending: %s, want one", listed.raw)
	}
	shown := h.do(t, request{method: "GET", path: at, token: "operator"})
	toolstest.Has(t, toolstest.Object{"operation": toolstest.Object{"id": string(id), "status": "pending"}}, shown.body.Data)
	if shown.body.Data["statement"] == nil {
		t.Errorf("shown without what is signed: %s", shown.raw)
	}
	done := h.do(t, request{method: "POST", path: at + "/approve", token: "admin", body: approve})
	toolstest.Has(t, toolstest.Object{"operation": toolstest.Object{"status": "completed"}, "failed": nil}, done.body.Data)
	if got := h.call(t, "agent", "system_sdwan_get_network", `{"network_id": "`+network+`"}`); got.status != 404 {
		t.Errorf("the network after the approval: %d %s", got.status, got.raw)
	}
	if got := h.do(t, request{method: "POST", path: at + "/approve", token: "admin", body: approve}); got.status != 409 {
		t.Errorf("approved again: %d %s, want 409", got.status, got.raw)
	}
}

func TestPolicyIsSetAndTakenBackWithASignature(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	const at = "/api/v1/policies/sdwan.network_create"
	sign := func(prepared reply) (policyID, signed string) {
		raw, err := json.Marshal(prepared.body.Data["statement"])
		if err != nil {
			t.Fatal(err)
		}
		var s governance.PolicyStatement
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(toolstest.Object{"signature": governance.Sign(h.Key, s.Bytes()), "chain": s.Chain})
		if err != nil {
			t.Fatal(err)
		}
		return string(s.PolicyID), strings.Trim(string(encoded), "{}")
	}
	prepared := h.do(t, request{method: "GET", path: at + "?verdict=block&role=agent", token: "admin"})
	if prepared.status != 200 {
		t.Fatalf("prepare: %d %s", prepared.status, prepared.raw)
	}
	id, signed := sign(prepared)
	body := `{"verdict": "block", "scope": {"role": "agent"}, "policy_id": "` + id + `", ` + signed + `}`
	for _, tt := range []struct {
		name string
		in   request
		want int
	}{
		{"an assistant reads", request{method: "GET", path: at, token: "agent"}, 403},
		{"an assistant lists", request{method: "GET", path: "/api/v1/policies", token: "agent"}, 403},
		{"an assistant sets", request{method: "PUT", path: at, token: "agent", body: body}, 403},
		{"an operator sets", request{method: "PUT", path: at, token: "operator", body: body}, 403},
		{"an operator prepares", request{method: "GET", path: at + "?verdict=block", token: "operator"}, 403},
		{"a read-only token sets", request{method: "PUT", path: at, token: "reader", body: body}, 403},
		{"another verdict than was signed", request{method: "PUT", path: at, token: "admin", body: strings.Replace(body, "block", "auto_approve", 1)}, 403},
		{"a wider scope than was signed", request{method: "PUT", path: at, token: "admin", body: strings.Replace(body, `"role": "agent"`, "", 1)}, 403},
		{"another category than was signed", request{method: "PUT", path: "/api/v1/policies/system.node_create", token: "admin", body: body}, 403},
		{"a verdict that there is not", request{method: "PUT", path: at, token: "admin", body: strings.Replace(body, "block", "deny", 1)}, 400},
		{"a misspelt scope", request{method: "PUT", path: at, token: "admin", body: strings.Replace(body, `"role"`, `"roll"`, 1)}, 400},
		{"over another record than was signed", request{method: "PUT", path: at, token: "admin", body: strings.Replace(body, `"rows":`, `"rows":1`, 1)}, 403},
		{"without the head that was signed", request{method: "PUT", path: at, token: "admin", body: body[:strings.Index(body, `"chain":`)] + body[strings.Index(body, `"signature":`):]}, 403},
		{"no signature", request{method: "PUT", path: at, token: "admin", body: `{"verdict": "block", "policy_id": "` + id + `"}`}, 400},
		{"an unknown category", request{method: "GET", path: "/api/v1/policies/sdwan.network_creat", token: "viewer"}, 404},
		{"a query that is not declared", request{method: "GET", path: at + "?verdit=block", token: "viewer"}, 400},
		{"a key of the query twice", request{method: "GET", path: at + "?verdict=block&verdict=unset", token: "admin"}, 400},
		{"a query beside a body", request{method: "PUT", path: at + "?verdict=block", token: "admin", body: body}, 400},
	} {
		if got := h.do(t, tt.in); got.status != tt.want || got.body.Error == nil {
			t.Errorf("%s: %d %s, want %d", tt.name, got.status, got.raw, tt.want)
		}
	}
	if got := h.do(t, request{method: "PUT", path: at, token: "admin", body: body}); got.status != 200 || got.body.Data["verdict"] != "block" {
		t.Fatalf("set: %d %s", got.status, got.raw)
	}
	if got := h.call(t, "agent", "system_sdwan_create_network", `{"name": "a"}`); got.code() != schema.BlockedByPolicy {
		t.Errorf("create under the policy: %d %s", got.status, got.raw)
	}
	_, signed = sign(h.do(t, request{method: "GET", path: at + "?verdict=unset&role=agent", token: "admin"}))
	got := h.do(t, request{method: "DELETE", path: at, token: "admin", body: `{"scope": {"role": "agent"}, ` + signed + `}`})
	if got.status != 200 || got.body.Data["source"] != "default" {
		t.Fatalf("unset: %d %s", got.status, got.raw)
	}
	if got := h.call(t, "agent", "system_sdwan_create_network", `{"name": "a"}`); got.status != 200 {
		t.Errorf("create after it: %d %s", got.status, got.raw)
	}
	read := h.do(t, request{method: "GET", path: at, token: "viewer"})
	if rows, _ := read.body.Data["policies"].([]any); len(rows) != 1 || read.body.Data["statement"] != nil {
		t.Errorf("read: %s", read.raw)
	}
}

func TestOtherAccountSeesNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	network := h.Call(t, "system_sdwan_create_network", `{"name": "a"}`)["network"].(toolstest.Object)["id"].(string)
	id := h.Parked(t, "system_sdwan_delete_network", toolstest.Object{"network_id": network})
	other := h.AddAccount(t, "other", "fd5e:8a21:c0df::/48")
	h.callers["foreign"] = tools.Caller{AccountID: other.ID, Kind: governance.KindPerson, Role: governance.RoleAdmin, ID: "foreign", UserID: store.UserID("foreign")}
	if got := h.do(t, request{method: "GET", path: "/api/v1/operations/" + string(id), token: "foreign"}); got.status != 404 {
		t.Errorf("operation: %d %s, want 404", got.status, got.raw)
	}
	if got := h.call(t, "foreign", "system_sdwan_get_network", `{"network_id": "`+network+`"}`); got.status != 404 {
		t.Errorf("network: %d %s, want 404", got.status, got.raw)
	}
	if got := h.do(t, request{method: "GET", path: "/api/v1/operations", token: "foreign"}); len(got.body.Data["operations"].([]any)) != 0 {
		t.Errorf("operations: %s, want none", got.raw)
	}
}

func TestOperationsComeInPages(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var want []string
	for _, name := range []string{"a", "b", "c"} {
		parked := h.call(t, "agent", "request_confirmation",
			`{"action_description": "x", "tool_name": "system_sdwan_create_network", "tool_arguments": {"name": "`+name+`"}}`)
		want = append([]string{parked.body.Data["deferred_operation_id"].(string)}, want...)
	}
	list := func(query string) toolstest.Object {
		t.Helper()
		got := h.do(t, request{method: "GET", path: "/api/v1/operations?" + query, token: "operator"})
		if got.status != 200 {
			t.Fatalf("operations with %s: %d %s", query, got.status, got.raw)
		}
		return got.body.Data
	}
	var seen []string
	query, pages := "limit=2", 0
	for query != "" {
		page := list(query)
		for _, o := range page["operations"].([]any) {
			seen = append(seen, o.(toolstest.Object)["id"].(string))
		}
		more, cursor := page["has_more"].(bool), page["next_cursor"]
		if pages++; page["count"] != 3.0 || more != (cursor != nil) || pages > 2 {
			t.Fatalf("page %d: count %v, has_more %t, next_cursor %v", pages, page["count"], more, cursor)
		}
		query = ""
		if more {
			query = "limit=2&cursor=" + cursor.(string)
			other := h.do(t, request{method: "GET", path: "/api/v1/operations?status=pending&" + query, token: "operator"})
			if other.status != 400 || other.body.Error.Message != "cursor is not one that this verb issued" {
				t.Errorf("the cursor of another filter: %d %s, want 400", other.status, other.raw)
			}
		}
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if all := list(""); len(all["operations"].([]any)) != 3 || all["has_more"] != false || all["next_cursor"] != nil {
		t.Errorf("without pages: %v", all)
	}
}
