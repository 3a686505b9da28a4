package fleet

import (
	"encoding/json"
	"testing"

	"powernode/store"
)

func TestDrainedInstanceIsServedModulesWithoutServices(t *testing.T) {
	t.Parallel()
	const manifest = `{"files":[{"path":"/opt/web"}],"services":[{"name":"web"}]}`
	at := store.Time{}
	for name, tt := range map[string]struct {
		drained *store.Time
		want    string
	}{"it runs": {nil, manifest}, "it is drained": {&at, `{"files":[{"path":"/opt/web"}]}`}} {
		if got := manifestFor(store.Instance{DrainedAt: tt.drained}, json.RawMessage(manifest)); string(got) != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	if got := manifestFor(store.Instance{DrainedAt: &at}, nil); got != nil {
		t.Errorf("a version without a manifest: %s", got)
	}
}
