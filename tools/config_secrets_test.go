package tools_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
	"powernode/tools/toolstest"
)

// Free-form objects are the callers' own: what they put into them by mistake must not stand in the record for ever.
func TestNoSecretOfAFreeFormObjectStandsInTheRecord(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2-hunter2"
	w := newWorld(t)
	written := 0
	for _, d := range w.Platform.Verbs() {
		c := d.Contract()
		for _, key := range []string{"config", "specs"} {
			if p := c.InputShape().Properties[key]; c.Annotations.ReadOnly || p == nil || !p.FreeForm || len(w.args[d.Name()]) == 0 {
				continue
			}
			args := maps.Clone(w.args[d.Name()][0])
			args[key] = toolstest.Object{"api_token": secret, "tenant": "tenant-of-" + d.Name()}
			before := strings.Count(w.record(t), "tenant-of-")
			_, err := w.Platform.Call(t.Context(), w.callerOf(d), tools.Request{Verb: d.Name(), Arguments: encoded(t, args)})
			if refused := new(schema.Error); err != nil && (!errors.As(err, &refused) || refused.Code != schema.InvalidArguments) {
				t.Errorf("%s: %v", d.Name(), err)
			}
			if err == nil && strings.Count(w.record(t), "tenant-of-") > before {
				written++
			}
		}
	}
	if written < 5 {
		t.Errorf("only %d verbs have told of a free-form object in the record", written)
	}
	if strings.Contains(w.record(t), secret) {
		t.Error("the secret stands in the record")
	}
}

// record is the account's audit rows as text.
func (w *world) record(t *testing.T) string {
	t.Helper()
	return spelt(w.CallAs(t, governance.PersonCaller(w.Person), "platform_audit_log", toolstest.Object{"limit": 500}))
}
