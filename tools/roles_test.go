package tools_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// visitor is a caller as the walk holds every verb against it.
type visitor struct {
	name   string
	caller tools.Caller
	denied func(v *schema.Verb) string // "" is permitted, else what the refusal says
}

func visitors(t *testing.T, w *world) []visitor {
	t.Helper()
	role := func(c tools.Caller) func(*schema.Verb) string {
		return func(v *schema.Verb) string {
			switch {
			case v.HumanOnly && c.Kind != governance.KindPerson:
				return "a human credential is required"
			case !slices.Contains(governance.Permissions[v.Permission], c.Role):
				return "permission denied: " + v.Permission + " required"
			}
			return ""
		}
	}
	w.AddPerson(t, "ops@example.org", governance.RoleOperator)
	token := func(user string, s governance.TokenStatement) tools.Caller {
		secret, _ := w.Token(t, user, s)
		return w.CallerBy(t, secret)
	}
	out := []visitor{}
	for name, c := range map[string]tools.Caller{
		"a viewer":                w.AddPerson(t, "vi@example.org", governance.RoleViewer),
		"an operator's token":     token("ops@example.org", governance.TokenStatement{Role: governance.RoleOperator}),
		"an admin's token":        token(w.Person.Email, governance.TokenStatement{Role: governance.RoleAdmin}),
		"an admin's viewer token": token(w.Person.Email, governance.TokenStatement{Role: governance.RoleViewer}),
		"the account's agent":     w.Caller,
		"an agent's token":        token("", governance.TokenStatement{Role: governance.RoleAgent}),
		"an instance":             {AccountID: w.Account.ID, Kind: "node_agent", Role: "node_agent", ID: "instance"},
	} {
		out = append(out, visitor{name, c, role(c)})
	}
	reader := token(w.Person.Email, governance.TokenStatement{Role: governance.RoleAdmin, ReadOnly: true})
	out = append(out, visitor{"a read-only token", reader, func(v *schema.Verb) string {
		if !v.Annotations.ReadOnly && v.Name != "platform_call_verb" {
			return "permission denied: this credential or session is read only"
		}
		return ""
	}})
	narrow := token("", governance.TokenStatement{Role: governance.RoleAgent, Toolsets: []string{"sdwan", "signals"}})
	agent := role(narrow)
	open := strings.Fields("platform_whoami platform_preview platform_search_verbs platform_call_verb platform_get_operation")
	return append(out, visitor{"a token of two toolsets", narrow, func(v *schema.Verb) string {
		if denied := agent(v); denied != "" {
			return denied
		}
		if v.Toolset != "sdwan" && v.Toolset != "signals" && !slices.Contains(open, v.Name) {
			return "permission denied: the token does not reach toolset " + v.Toolset
		}
		return ""
	}})
}

// TestEveryRoleReachesItsVerbsAlone walks every verb with every kind of credential. What is permitted is previewed, so
// that the world stays as it is.
func TestEveryRoleReachesItsVerbsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, who := range visitors(t, w) {
		t.Run(who.name, func(t *testing.T) {
			w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
				v := d.Contract()
				denied := who.denied(v)
				carries := map[string]string{"request_confirmation": "system_create_node", "platform_call_verb": "system_create_node"}
				if inner, ok := w.Platform.Lookup(carries[v.Name]); ok && denied == "" { // what a verb carries is held to it too
					denied = who.denied(inner.Contract())
				}
				switch {
				case denied != "":
					w.RefusedAs(t, who.caller, v.Name, args, schema.PermissionDenied, denied)
				case v.Gated():
					preview := w.CallAs(t, who.caller, "platform_preview", toolstest.Object{"verb": v.Name, "arguments": args})
					for _, refusal := range objects(t, preview["refusals"]) {
						if refusal["code"] == "permission_denied" {
							t.Errorf("refused: %s", spelt(refusal))
						}
					}
				case v.Name == "system_sdwan_get_device_config", carries[v.Name] != "": // one's own alone; it would run
				default:
					if _, err := w.Platform.Call(t.Context(), who.caller, tools.Request{Verb: v.Name, Arguments: encoded(t, args)}); schema.CodeOf(err) == schema.PermissionDenied {
						t.Errorf("refused: %v", err)
					}
				}
			})
		})
	}
}

func encoded(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestForeignAccountSeesNothing calls every reader for another account, and looks for anything of this one.
func TestForeignAccountSeesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := governance.AgentCaller(w.AddAccount(t, "other", "fd5e:8a21:c0df::/48").ID)
	own := w.ids(t)
	if len(own) < 30 {
		t.Fatalf("only %d ids to look for", len(own))
	}
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		if !d.Contract().Annotations.ReadOnly || hasIDs(args) || d.Contract().HumanOnly {
			return
		}
		result, err := w.Platform.Call(t.Context(), other, tools.Request{Verb: d.Name(), Arguments: encoded(t, args)})
		var refused *schema.Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
		text := string(result.JSON)
		if refused != nil {
			text = string(encoded(t, refused))
		}
		for id := range own {
			if strings.Contains(text, id) {
				t.Errorf("%s of the other account stands in %s", id, text)
			}
		}
	})
}

// ids are the ids that the account's own agent and administrator see of it in lists.
func (w *world) ids(t *testing.T) map[string]bool {
	t.Helper()
	own := map[string]bool{}
	var collect func(v any)
	collect = func(v any) {
		switch v := v.(type) {
		case toolstest.Object:
			for key, value := range v {
				id, ok := value.(string)
				if ok && (key == "id" || strings.HasSuffix(key, "_id")) && len(id) == 36 {
					own[id] = true
				}
				collect(value)
			}
		case []any:
			for _, value := range v {
				collect(value)
			}
		}
	}
	for _, d := range w.Platform.Verbs() {
		if name := d.Name(); strings.Contains(name, "_list_") && d.Contract().Annotations.ReadOnly {
			for _, args := range w.args[name] {
				collect(w.CallAs(t, w.callerOf(d), name, args))
			}
		}
	}
	shared := w.CallAs(t, w.callerOf(w.lookup(t, "system_list_platforms")), "system_list_platforms", nil)
	for _, p := range objects(t, shared["platforms"]) { // architectures are the installation's
		if id, ok := p["architecture_id"].(string); ok {
			delete(own, id)
		}
	}
	if d, ok := w.Platform.Lookup("system_list_architectures"); ok {
		for _, a := range objects(t, w.CallAs(t, w.callerOf(d), d.Name(), nil)["architectures"]) {
			delete(own, a["id"].(string))
		}
	}
	return maps.Clone(own)
}

func (w *world) lookup(t *testing.T, verb string) *tools.Definition {
	t.Helper()
	d, ok := w.Platform.Lookup(verb)
	if !ok {
		t.Fatalf("no verb %s", verb)
	}
	return d
}

// TestEmergencyStopBlocksEveryWriteOfAssistants also holds the platform's own principal to it, and people not.
func TestEmergencyStopBlocksEveryWriteOfAssistants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	person := governance.PersonCaller(w.Person)
	since := w.CallAs(t, person, "platform_emergency_stop", toolstest.Object{"reason": "something is wrong"})["since"].(string)
	platform := governance.PlatformCaller(w.Account.ID)
	w.walk(t, func(t *testing.T, d *tools.Definition, args toolstest.Object) {
		v := d.Contract()
		switch {
		case v.HumanOnly:
			w.Refused(t, v.Name, args, schema.PermissionDenied, "a human credential is required")
		case v.Annotations.ReadOnly:
			if _, err := w.Platform.Call(t.Context(), w.callerOf(d), tools.Request{Verb: v.Name, Arguments: encoded(t, args)}); schema.CodeOf(err) == schema.BlockedByPolicy {
				t.Errorf("a reader is blocked: %v", err)
			}
		default:
			if governance.Permits(w.Caller, v.Permission) {
				w.Refused(t, v.Name, args, schema.BlockedByPolicy, "emergency stop since "+since)
			}
			w.RefusedAs(t, platform, v.Name, args, schema.BlockedByPolicy, "emergency stop since "+since)
		}
	})
	w.CallAs(t, person, "system_sdwan_create_network", toolstest.Object{"name": "by-a-person"})
	w.Resume(t, "it is right again")
	w.Call(t, "system_sdwan_create_network", toolstest.Object{"name": "by-the-assistant"})
}

// A narrowed credential learns what became of the calls that it can make, and of no others.
func TestNarrowedTokenReadsTheOperationsOfItsToolsets(t *testing.T) {
	t.Parallel()
	w := newSite(t)
	parked := w.Parked(t, "system_delete_node", toolstest.Object{"node_id": w.node(t, "spare", w.template(t, "spare"))})
	for toolset, reads := range map[string]bool{"fleet": true, "governance": true, "sdwan": false} {
		secret, _ := w.Token(t, "", governance.TokenStatement{Role: governance.RoleAgent, Toolsets: []string{toolset}})
		caller := w.CallerBy(t, secret)
		if reads {
			w.CallAs(t, caller, "platform_get_operation", toolstest.Object{"deferred_operation_id": parked})
			continue
		}
		w.RefusedAs(t, caller, "platform_get_operation", toolstest.Object{"deferred_operation_id": parked}, schema.NotFound, "operation not found")
	}
}
