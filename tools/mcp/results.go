package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
	"powernode/tools"
)

// largeResult is the size of a result, in bytes, above which its text is a link: clients cut what is larger, in silence.
const largeResult = 25_000

// readURI is the address of what a reader answers.
const readURI = "powernode://read/"

// takesLinks says whether a protocol revision knows links in a result.
func takesLinks(version string) bool { return version >= sdk.ProtocolVersion20250618 }

// readable says whether a verb's answer can be had under an address: reading it again does nothing else.
func readable(v *schema.Verb) bool {
	return v.Annotations.ReadOnly && !v.Gated() && !waits(v)
}

// link is the content of a large result: where to read all of it. The structured content stays whole beside it, for
// programs. false: the result is none that can be read again.
func (f *Face) link(d *tools.Definition, arguments json.RawMessage, size int) ([]sdk.Content, bool) {
	in, arguments := f.carried(d, arguments)
	if !readable(in.Contract()) {
		return nil, false
	}
	uri := readURI + in.Name()
	var compact bytes.Buffer
	if json.Compact(&compact, arguments) == nil && compact.Len() > 0 {
		// As a template reads it: there a plus is no blank.
		uri += "?arguments=" + strings.ReplaceAll(url.QueryEscape(compact.String()), "+", "%20")
	}
	text := fmt.Sprintf("The result has %d bytes and is not repeated here: read the resource %s, or ask for less", size, uri)
	if _, pages := in.Contract().InputShape().Properties["limit"]; pages {
		text += " with limit"
	}
	l := sdk.NewResourceLink(uri, in.Name(), "The whole result of this call, read again", "application/json")
	whole := int64(size)
	l.Size = &whole
	return []sdk.Content{sdk.NewTextContent(text + "."), l}, true
}

// readVerb reads the address of a reader's answer.
func (f *Face) readVerb(ctx context.Context, c *Call) ([]sdk.ResourceContents, error) {
	d, ok := f.Platform.Lookup(c.Values["verb"])
	if !ok || !readable(d.Contract()) {
		return nil, schema.Errorf(schema.NotFound, "no reader is named %s", schema.Printable(c.Values["verb"]))
	}
	text, err := f.ask(ctx, c, d.Name(), json.RawMessage(c.Values["arguments"]))
	return jsonContents(c.URI, text), err
}

// ask calls a reader for a resource: the same path, permission and record as a tool's call.
func (f *Face) ask(ctx context.Context, c *Call, verb string, arguments json.RawMessage) (json.RawMessage, error) {
	result, err := f.Platform.Call(ctx, c.Caller, tools.Request{Verb: verb, Arguments: arguments})
	return result.JSON, err
}

func jsonContents(uri string, text json.RawMessage) []sdk.ResourceContents {
	return []sdk.ResourceContents{sdk.TextResourceContents{URI: uri, MIMEType: "application/json", Text: string(text)}}
}
