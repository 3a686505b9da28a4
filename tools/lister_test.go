package tools_test

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"powernode/schema"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// unlisted are parameters whose objects no verb lists: what has their ids is a verb that reads something else.
var unlisted = map[string]bool{"access_grant_id": true, "pool_id": true, "virtual_ip_id": true, "worker_id": true}

func TestAnIDThatIsNoneHintsAtTheVerbThatGivesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tried := 0
	for _, d := range w.Platform.Verbs() {
		verb, shape := d.Contract().Name, d.Contract().InputShape()
		for _, name := range shape.Names {
			if !strings.HasSuffix(name, "_id") || shape.Properties[name].Type != "string" || unlisted[name] {
				continue
			}
			for _, args := range w.args[verb] {
				args = maps.Clone(args)
				for _, wrong := range []string{"a-name", "01a22cbd-795d-70ac-9bc7-000000000000"} {
					args[name] = wrong
					sent, err := json.Marshal(args)
					if err != nil {
						t.Fatal(err)
					}
					_, err = w.Platform.Call(t.Context(), w.callerOf(d), tools.Request{Verb: verb, Arguments: sent})
					var refused *schema.Error
					if !errors.As(err, &refused) || !aboutID(refused, name) {
						continue // a filter that matches nothing, or a refusal that comes first
					}
					tried++
					if refused.Hint == nil {
						t.Errorf("%s with %s %q: %q without a hint", verb, name, wrong, refused.Message)
					} else if _, ok := w.Platform.Lookup(refused.Hint.Verb); !ok {
						t.Errorf("%s with %s %q hints at %s, which is no verb", verb, name, wrong, refused.Hint.Verb)
					}
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d refusals were about an id", tried)
	}
}

// aboutID tells whether a refusal is about the id that was wrong.
func aboutID(refused *schema.Error, name string) bool {
	at, _ := refused.Details["pointer"].(string)
	return refused.Code == schema.NotFound || (refused.Code == schema.InvalidArguments && at == "/"+name)
}

func TestANameThatIsTakenNamesWhatHasIt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	platform := at(t, objects(t, l.Call(t, "system_list_platforms", nil)["platforms"])[0], "id").(string)
	args := toolstest.Object{"name": "web", "node_platform_id": platform}
	template := at(t, l.Call(t, "system_create_template", args), "template", "id")
	refused := l.Refused(t, "system_create_template", args, schema.Conflict, "already in use")
	if got := refused.Details["template_id"]; got != template {
		t.Errorf("the template that has the name: got %v, want %v", got, template)
	}
	args = toolstest.Object{"name": "web", "template_id": template}
	node := at(t, l.Call(t, "system_create_node", args), "node", "id")
	refused = l.Refused(t, "system_create_node", args, schema.Conflict, "already in use")
	if got := refused.Details["node_id"]; got != node {
		t.Errorf("the node that has the name: got %v, want %v", got, node)
	}
}
