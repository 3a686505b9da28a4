package tools_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"powernode/tools"
	"powernode/tools/toolstest"
)

// BenchmarkCreateNode is a call that writes one row, through the whole path.
func BenchmarkCreateNode(b *testing.B) {
	e := toolstest.New(b)
	ctx := b.Context()
	var platforms struct{ Platforms []struct{ ID string } }
	list, err := e.Platform.Call(ctx, e.Caller, tools.Request{Verb: "system_list_platforms"})
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(list.JSON, &platforms); err != nil {
		b.Fatal(err)
	}
	made, err := e.Platform.Call(ctx, e.Caller, tools.Request{Verb: "system_create_template",
		Arguments: fmt.Appendf(nil, `{"name":"t","node_platform_id":%q}`, platforms.Platforms[0].ID)})
	if err != nil {
		b.Fatal(err)
	}
	var template struct{ Template struct{ ID string } }
	if err := json.Unmarshal(made.JSON, &template); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		_, err := e.Platform.Call(ctx, e.Caller, tools.Request{Verb: "system_create_node", CallID: fmt.Sprint("call-", n),
			Arguments: fmt.Appendf(nil, `{"name":"node-%d","template_id":%q}`, n, template.Template.ID)})
		if err != nil {
			b.Fatal(err)
		}
	}
}
