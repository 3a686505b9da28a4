package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
	"powernode/tools"
)

const runbooks = "powernode://runbooks"

// view is a resource that is what a reader answers.
type view struct {
	uri, name, title, text string
	verb                   string
	arguments              string // JSON; {id} stands for the variable of a template, encoded
}

// views are what there is, as resources.
var views = []view{
	{"powernode://clusters", "clusters", "Clusters", "The account's clusters, each with its status and API address.",
		"kubernetes_list_clusters", `{}`},
	{"powernode://networks", "networks", "Networks", "The account's networks, each with its /64.",
		"system_sdwan_list_networks", `{"limit":500}`},
	{"powernode://signals", "signals", "Signals", "The latest fleet signals.", "system_recent_signals", `{"limit":50}`},
	{"powernode://operations", "operations", "Parked calls", "Your calls that wait for a person.",
		"platform_list_operations", `{"status":"pending"}`},
	{"powernode://clusters/{id}", "cluster", "Cluster", "A cluster: status, health, members.",
		"kubernetes_get_cluster", `{"cluster_id":{id}}`},
	{"powernode://networks/{id}", "network", "Network", "A network: settings, peers, clusters.",
		"system_sdwan_get_network", `{"network_id":{id}}`},
	{"powernode://operations/{id}", "operation", "Parked call", "A parked call and what was decided.",
		"platform_get_operation", `{"deferred_operation_id":{id}}`},
}

func (v view) isTemplate() bool { return strings.Contains(v.uri, "{") }

// resources are those with an address of their own: what there is, the topology, and the documents.
func (f *Face) resources() ([]Resource, error) {
	var all []Resource
	for _, v := range views {
		if v.isTemplate() {
			continue
		}
		r := sdk.Resource{URI: v.uri, Name: v.name, Title: v.title, Description: v.text, MIMEType: "application/json"}
		all = append(all, Resource{Listed: r, Read: f.readView(v)})
	}
	all = append(all, Resource{Listed: sdk.Resource{URI: "powernode://topology", Name: "topology", Title: "Topology",
		Description: "Every network with its peers.", MIMEType: "application/json"}, Read: f.readTopology})
	documents, err := f.documents()
	return append(all, documents...), err
}

func (f *Face) templates() []ResourceTemplate {
	var all []ResourceTemplate
	for _, v := range views {
		if !v.isTemplate() {
			continue
		}
		t := sdk.NewResourceTemplate(v.uri, v.name, sdk.WithTemplateDescription(v.text), sdk.WithTemplateMIMEType("application/json"))
		t.Title = v.title
		all = append(all, ResourceTemplate{Listed: t, Read: f.readView(v)})
	}
	read := sdk.NewResourceTemplate(readURI+"{verb}{?arguments}", "read", sdk.WithTemplateMIMEType("application/json"),
		sdk.WithTemplateDescription("What a tool that only reads answers; arguments are its JSON object. Large results link here."))
	read.Title = "Result of a reader"
	return append(all, ResourceTemplate{Listed: read, Read: f.readVerb})
}

func (f *Face) readView(v view) func(ctx context.Context, c *Call) ([]sdk.ResourceContents, error) {
	return func(ctx context.Context, c *Call) ([]sdk.ResourceContents, error) {
		id, err := json.Marshal(c.Values["id"])
		if err != nil {
			return nil, fmt.Errorf("encode an id: %w", err)
		}
		text, err := f.ask(ctx, c, v.verb, json.RawMessage(strings.ReplaceAll(v.arguments, "{id}", string(id))))
		var unknown *tools.UnknownVerbError
		if errors.As(err, &unknown) {
			return nil, schema.Errorf(schema.NotFound, "no verb reads this resource")
		}
		return jsonContents(c.URI, text), err
	}
}

// readTopology is every network with its peers, or with its tunnels where a verb tells them.
func (f *Face) readTopology(ctx context.Context, c *Call) ([]sdk.ResourceContents, error) {
	raw, err := f.ask(ctx, c, "system_sdwan_list_networks", json.RawMessage(`{"limit":500}`))
	if err != nil {
		return nil, err
	}
	var list map[string]json.RawMessage // count and has_more stay: of more networks than a page holds, that is said
	var networks []map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(raw, &list), json.Unmarshal(list["networks"], &networks)); err != nil {
		return nil, fmt.Errorf("read a list of networks: %w", err)
	}
	verb, key, more := "system_sdwan_list_peers", "peers", `,"limit":500}`
	if _, ok := f.Platform.Lookup("system_sdwan_get_topology"); ok {
		verb, key, more = "system_sdwan_get_topology", "topology", `}`
	}
	for _, network := range networks {
		part, err := f.ask(ctx, c, verb, json.RawMessage(`{"network_id":`+string(network["id"])+more))
		if err != nil {
			return nil, err
		}
		network[key] = part
	}
	if list["networks"], err = json.Marshal(networks); err != nil {
		return nil, fmt.Errorf("encode the networks: %w", err)
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode the topology: %w", err)
	}
	return jsonContents(c.URI, text), nil
}

// documents are the texts for operators, and a list of them.
func (f *Face) documents() ([]Resource, error) {
	if f.Docs == nil {
		return nil, nil
	}
	files, err := fs.Glob(f.Docs, "*.md")
	if err != nil {
		return nil, fmt.Errorf("list documents: %w", err)
	}
	var all []Resource
	var index strings.Builder
	index.WriteString("# Documents\n\n")
	for _, file := range files {
		text, err := fs.ReadFile(f.Docs, file)
		if err != nil {
			return nil, fmt.Errorf("read document %s: %w", file, err)
		}
		name := strings.TrimSuffix(path.Base(file), ".md")
		title := titleOf(string(text), name)
		uri := runbooks + "/" + name
		fmt.Fprintf(&index, "- [%s](%s)\n", title, uri)
		all = append(all, document(uri, name, title, "For operators: "+title, string(text)))
	}
	return append(all, document(runbooks, "runbooks", "Documents", "The list of documents for operators.", index.String())), nil
}

func document(uri, name, title, about, text string) Resource {
	size := int64(len(text))
	r := sdk.Resource{URI: uri, Name: name, Title: title, Description: about, MIMEType: "text/markdown", Size: &size}
	return Resource{Listed: r, Read: func(context.Context, *Call) ([]sdk.ResourceContents, error) {
		return []sdk.ResourceContents{sdk.TextResourceContents{URI: uri, MIMEType: "text/markdown", Text: text}}, nil
	}}
}

// titleOf is a document's first heading.
func titleOf(text, name string) string {
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(line, "# "); ok {
			return strings.TrimSpace(title)
		}
	}
	return name
}

// complete answers what an argument may be, from what there is.
func (f *Face) complete(ctx context.Context, c *Call, ref Reference) ([]string, error) {
	var values []string
	var err error
	switch {
	case ref.Template == "powernode://clusters/{id}", ref.Prompt != "" && strings.HasPrefix(ref.Argument, "cluster"):
		values, err = f.column(ctx, c, "kubernetes_list_clusters", `{}`, "clusters", "name")
	case ref.Template == "powernode://networks/{id}", ref.Prompt != "" && strings.HasPrefix(ref.Argument, "network"):
		values, err = f.column(ctx, c, "system_sdwan_list_networks", `{"limit":500}`, "networks", "name")
	case ref.Template == "powernode://operations/{id}":
		values, err = f.column(ctx, c, "platform_list_operations", `{"limit":500}`, "operations", "id")
	case strings.HasPrefix(ref.Template, readURI) && ref.Argument == "verb":
		for _, d := range f.Platform.Verbs() {
			if readable(d.Contract()) {
				values = append(values, d.Name())
			}
		}
	}
	fitting := []string{}
	for _, v := range values {
		if strings.HasPrefix(strings.ToLower(v), strings.ToLower(ref.Value)) {
			fitting = append(fitting, v)
		}
	}
	return fitting, err
}

// column is one key of a list's rows.
func (f *Face) column(ctx context.Context, c *Call, verb, arguments, rows, key string) ([]string, error) {
	raw, err := f.ask(ctx, c, verb, json.RawMessage(arguments))
	switch {
	case schema.CodeOf(err) == schema.PermissionDenied: // who may not see them is offered none
		return nil, nil
	case err != nil:
		return nil, err
	}
	var list map[string]json.RawMessage
	var table []map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(raw, &list), json.Unmarshal(list[rows], &table)); err != nil {
		return nil, fmt.Errorf("read the rows of %s: %w", verb, err)
	}
	values := make([]string, len(table))
	for i, row := range table {
		if err := json.Unmarshal(row[key], &values[i]); err != nil {
			return nil, fmt.Errorf("read a row of %s: %w", verb, err)
		}
	}
	return values, nil
}
