package schema_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
)

func TestConfigIsHeldAgainstItsModulesSchema(t *testing.T) {
	t.Parallel()
	const own = `{"type": "object", "additionalProperties": false, "required": ["size"], "properties": {
		"size": {"type": "integer", "minimum": 1}, "target_cluster_id": {"type": "string"},
		"labels": {"type": "object", "additionalProperties": {"type": "string"}}}}`
	const foreign = `{"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "integer"}}}`
	for _, tt := range []struct {
		name, schema, config, pointer, candidate string
	}{
		{"what fits", own, `{"size": 2, "labels": {"a": "b"}}`, "", ""},
		{"a misspelt key", own, `{"size": 2, "target_clusterid": "x"}`, "/config/target_clusterid", "target_cluster_id"},
		{"a key that is missing", own, `{}`, "/config/size", ""},
		{"a wrong type", own, `{"size": "2"}`, "/config/size", ""},
		{"a wrong value inside", own, `{"size": 2, "labels": {"a": 1}}`, "/config/labels/a", ""},
		{"no schema", "", `{"anything": [1]}`, "", ""},
		{"a schema beyond our subset, fitting", foreign, `{"a": 1}`, "", ""},
		{"a schema beyond our subset, broken", foreign, `{"a": "x"}`, "/config/a", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var config map[string]any
			if err := json.Unmarshal([]byte(tt.config), &config); err != nil {
				t.Fatal(err)
			}
			var declared json.RawMessage
			if tt.schema != "" {
				declared = json.RawMessage(tt.schema)
			}
			var refusal *schema.Error
			errors.As(schema.ValidateConfig(declared, config), &refusal)
			got := [2]string{}
			if refusal != nil {
				got[0], _ = refusal.Details["pointer"].(string)
				if candidates, _ := refusal.Details["candidates"].([]string); len(candidates) > 0 {
					got[1] = candidates[0]
				}
			}
			if diff := cmp.Diff([2]string{tt.pointer, tt.candidate}, got); diff != "" {
				t.Errorf("pointer and candidate (-want +got):\n%s\n%v", diff, refusal)
			}
		})
	}
}
