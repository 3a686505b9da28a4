package mcp

import (
	"testing"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/tools"
)

// The address of a result is read back to the very arguments of the call.
func TestLinkLeadsToTheArgumentsOfItsCall(t *testing.T) {
	t.Parallel()
	p := &tools.Platform{}
	if err := p.Register(); err != nil {
		t.Fatal(err)
	}
	f := &Face{Platform: p}
	d, ok := p.Lookup("platform_search_verbs")
	if !ok {
		t.Fatal("no verb searches")
	}
	families := f.templates()
	read := families[len(families)-1].Listed.URITemplate
	for _, arguments := range []string{`{"query":"a cluster with 2 workers"}`, `{"query":"100% + more & ~a/b?c#d=\"é\""}`, `{}`} {
		content, ok := f.link(d, []byte(arguments), 1)
		if !ok || len(content) != 2 {
			t.Fatalf("%s: no link: %v", arguments, content)
		}
		uri := content[1].(sdk.ResourceLink).URI
		match := read.Match(uri)
		if match.Get("verb").String() != d.Name() || match.Get("arguments").String() != arguments {
			t.Errorf("%s became %s, and is read as %s", arguments, uri, match.Get("arguments"))
		}
	}
}
