package rest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v5"

	"powernode/schema"
	"powernode/tools/rest"
	"powernode/tools/toolstest"
)

func contract(t *testing.T) []*schema.Verb {
	t.Helper()
	verbs, err := schema.Verbs()
	if err != nil {
		t.Fatal(err)
	}
	return verbs
}

func document(t *testing.T) (raw json.RawMessage, doc toolstest.Object) {
	t.Helper()
	raw, err := rest.OpenAPI(contract(t), "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return raw, doc
}

func TestDocumentIsOpenAPI31(t *testing.T) {
	t.Parallel()
	structure, err := os.ReadFile("testdata/openapi-3.1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := jsonschema.CompileString("openapi-3.1", string(structure))
	if err != nil {
		t.Fatal(err)
	}
	_, doc := document(t)
	if err := compiled.Validate(doc); err != nil {
		t.Fatalf("%#v", err)
	}
	broken := maps.Clone(doc)
	broken["pahts"] = toolstest.Object{}
	if compiled.Validate(broken) == nil {
		t.Error("a misspelt member was taken")
	}
}

func TestEveryReferenceResolves(t *testing.T) {
	t.Parallel()
	raw, doc := document(t)
	found := regexp.MustCompile(`"\$ref":"#/([^"]+)"`).FindAllStringSubmatch(string(raw), -1)
	if len(found) == 0 {
		t.Fatal("no reference at all")
	}
	for _, each := range found {
		var at any = doc
		for _, step := range strings.Split(each[1], "/") {
			inside, _ := at.(toolstest.Object)
			at = inside[step]
		}
		if at == nil {
			t.Errorf("%s leads nowhere", each[1])
		}
	}
}

// operationsOf are a document's operations by method and path.
func operationsOf(doc toolstest.Object) map[string]toolstest.Object {
	out := map[string]toolstest.Object{}
	for path, item := range doc["paths"].(toolstest.Object) {
		for method, o := range item.(toolstest.Object) {
			out[strings.ToUpper(method)+" "+path] = o.(toolstest.Object)
		}
	}
	return out
}

func TestEveryVerbIsOneOperationWithTheContractsSchema(t *testing.T) {
	t.Parallel()
	_, doc := document(t)
	operations := operationsOf(doc)
	for _, v := range contract(t) {
		o, ok := operations["POST /api/v1/verbs/"+v.Name]
		if !ok {
			t.Errorf("%s is not there", v.Name)
			continue
		}
		var want any
		if err := json.Unmarshal(v.Input, &want); err != nil {
			t.Fatal(err)
		}
		got := o["requestBody"].(toolstest.Object)["content"].(toolstest.Object)["application/json"].(toolstest.Object)["schema"]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: input (-want +got):\n%s", v.Name, diff)
		}
		_, parks := o["responses"].(toolstest.Object)["202"]
		if o["operationId"] != v.Name || parks != v.Gated() {
			t.Errorf("%s: operationId %v, parks %t, want %t", v.Name, o["operationId"], parks, v.Gated())
		}
	}
}

func TestOperationsAreNamedOnceAndDeclareTheirPathsParameters(t *testing.T) {
	t.Parallel()
	_, doc := document(t)
	named := map[string]string{}
	for at, o := range operationsOf(doc) {
		id := o["operationId"].(string)
		if other, twice := named[id]; twice {
			t.Errorf("%s and %s are both %s", at, other, id)
		}
		named[id] = at
		var want, got []string
		for _, m := range regexp.MustCompile(`{([^}]+)}`).FindAllStringSubmatch(at, -1) {
			want = append(want, m[1])
		}
		parameters, _ := o["parameters"].([]any)
		for _, p := range parameters {
			if p := p.(toolstest.Object); p["in"] == "path" {
				got = append(got, p["name"].(string))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: path parameters (-want +got):\n%s", at, diff)
		}
	}
}

// What is described is served, and needs a credential where it says so; what is served is described.
func TestDocumentAndServerAgree(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	_, doc := document(t)
	for at, o := range operationsOf(doc) {
		method, path, _ := strings.Cut(at, " ")
		path = regexp.MustCompile(`{[^}]+}`).ReplaceAllString(path, "x")
		_, public := o["security"]
		want := http.StatusUnauthorized
		if public {
			want = http.StatusOK
		}
		if got := h.do(t, request{method: method, path: path}); got.status != want {
			t.Errorf("%s without a credential: %d, want %d", at, got.status, want)
		}
		if got := h.do(t, request{method: method, path: path, token: "admin"}); got.status == http.StatusMethodNotAllowed ||
			got.body.Error != nil && strings.HasPrefix(got.body.Error.Message, "no such path") {
			t.Errorf("%s is described and not served: %d %s", at, got.status, got.raw)
		}
	}
	for path := range doc["paths"].(toolstest.Object) {
		probe := regexp.MustCompile(`{[^}]+}`).ReplaceAllString(path, "x")
		got := h.do(t, request{method: http.MethodPatch, path: probe, token: "admin"})
		methods := slices.Sorted(maps.Keys(doc["paths"].(toolstest.Object)[path].(toolstest.Object)))
		if diff := cmp.Diff(strings.ToUpper(strings.Join(methods, ", ")), got.header.Get("Allow")); diff != "" {
			t.Errorf("%s: methods (-described +served):\n%s", path, diff)
		}
	}
}

func TestAnswersFitTheDocument(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	raw, _ := document(t)
	network := h.Call(t, "system_sdwan_create_network", `{"name": "a"}`)["network"].(toolstest.Object)["id"].(string)
	for _, tt := range []struct {
		name, token, verb, body, response string
	}{
		{"done", "agent", "system_sdwan_create_network", `{"name": "b"}`, "verbs~1system_sdwan_create_network/post/responses/200"},
		{"a list", "agent", "system_sdwan_list_networks", `{}`, "verbs~1system_sdwan_list_networks/post/responses/200"},
		{"parked", "agent", "system_sdwan_delete_network", `{"network_id": "` + network + `"}`, "Parked"},
		{"refused", "agent", "system_sdwan_create_network", `{"nam": "b"}`, "Refused"},
		{"not found", "agent", "none", `{}`, "Refused"},
		{"unauthenticated", "nobody", "platform_whoami", `{}`, "Unauthenticated"},
	} {
		at := "#/components/responses/" + tt.response
		if strings.Contains(tt.response, "/") {
			at = "#/paths/~1api~1v1~1" + tt.response
		}
		c := jsonschema.NewCompiler()
		c.Draft = jsonschema.Draft2020
		if err := c.AddResource("doc", strings.NewReader(string(raw))); err != nil {
			t.Fatal(err)
		}
		compiled, err := c.Compile("doc" + at + "/content/application~1json/schema")
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var got any
		answer := h.call(t, tt.token, tt.verb, tt.body)
		if err := json.Unmarshal(answer.raw, &got); err != nil {
			t.Fatal(err)
		}
		if err := compiled.Validate(got); err != nil {
			t.Errorf("%s: %s\n%v", tt.name, answer.raw, fmt.Errorf("%#v", err))
		}
	}
}
