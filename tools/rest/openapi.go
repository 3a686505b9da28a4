package rest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"powernode/schema"
	"powernode/tools"
)

// object is a part of the OpenAPI document that is ours; schemas stand in it as the contract has them.
type object = map[string]any

// operation is one method of one path as OpenAPI describes it.
type operation struct {
	OperationID string         `json:"operationId"`
	Summary     string         `json:"summary"`
	Description string         `json:"description,omitempty"`
	Tags        []string       `json:"tags"`
	Parameters  []object       `json:"parameters,omitempty"`
	RequestBody *requestBody   `json:"requestBody,omitempty"`
	Responses   map[string]any `json:"responses"`
	Security    *[]object      `json:"security,omitempty"` // nil: the document's; empty: none
	Powernode   any            `json:"x-powernode,omitempty"`
}

type requestBody struct {
	Required bool   `json:"required"`
	Content  object `json:"content"`
}

// verbFacts are what OpenAPI has no word for.
type verbFacts struct {
	Permission     string             `json:"permission"`
	ActionCategory string             `json:"action_category,omitempty"`
	HumanOnly      bool               `json:"human_only,omitempty"`
	Annotations    schema.Annotations `json:"annotations"`
}

const openAPIText = "Every verb of the platform, the paths of the seed documents, and people's surface. A key that is not declared is refused. " +
	"Where x-null-clears stands, null clears the value; another optional null counts as not given. " +
	"202 means that a person must decide the call first. An answer is {success, data} or {success, error}."

// OpenAPI describes the face for the contract's verbs, as an OpenAPI 3.1 document.
func OpenAPI(verbs []*schema.Verb, version string) (json.RawMessage, error) {
	paths := map[string]map[string]operation{}
	tags := map[string]bool{"people": true, "seed": true, "contract": true}
	for _, v := range verbs {
		tags[v.Toolset] = true
		paths["/api/v1/verbs/"+v.Name] = map[string]operation{"post": verbOperation(v)}
		if v.Name == "system_apply_template" || v.Name == "platform_audit_log" {
			path, method, o, err := seedOperation(v)
			if err != nil {
				return nil, fmt.Errorf("describe %s: %w", v.Name, err)
			}
			paths[path] = map[string]operation{method: o}
		}
	}
	if err := addPeople(paths); err != nil {
		return nil, err
	}
	paths["/api/v1/openapi.json"] = map[string]operation{"get": {OperationID: "openapi", Summary: "This document", Tags: []string{"contract"},
		Security: &[]object{}, Responses: object{"200": object{"description": "The document.", "content": jsonContent(json.RawMessage(`{"type":"object"}`))}}}}
	var listed []object
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		listed = append(listed, object{"name": name})
	}
	out, err := json.Marshal(object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Powernode", "version": version, "description": openAPIText},
		"servers":    []object{{"url": "/"}},
		"security":   []object{{"bearer": []string{}}},
		"tags":       listed,
		"paths":      paths,
		"components": components(),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI document: %w", err)
	}
	return out, nil
}

func verbOperation(v *schema.Verb) operation {
	o := operation{OperationID: v.Name, Summary: v.Title, Description: v.Description, Tags: []string{v.Toolset},
		Parameters:  []object{{"$ref": "#/components/parameters/CallID"}},
		RequestBody: &requestBody{Required: len(v.InputShape().Required) > 0, Content: jsonContent(v.Input)},
		Responses:   responses(v.Output),
		Powernode:   verbFacts{Permission: v.Permission, ActionCategory: v.Category, HumanOnly: v.HumanOnly, Annotations: v.Annotations}}
	if v.Gated() {
		o.Responses["202"] = object{"$ref": "#/components/responses/Parked"}
	}
	return o
}

// responses are the answers of an operation whose data has a schema.
func responses(data json.RawMessage) object {
	return object{
		"200":     object{"description": "Done.", "content": jsonContent(wrapped(data))},
		"401":     object{"$ref": "#/components/responses/Unauthenticated"},
		"default": object{"$ref": "#/components/responses/Refused"},
	}
}

func jsonContent(s any) object { return object{"application/json": object{"schema": s}} }

// wrapped is the schema of an envelope around data.
func wrapped(data any) object {
	return object{"type": "object", "required": []string{"success", "data"}, "additionalProperties": false,
		"properties": object{"success": object{"const": true}, "data": data}}
}

// seedOperation is a verb as the seed documents call it: one parameter in the path, or all in the query.
func seedOperation(v *schema.Verb) (path, method string, o operation, err error) {
	o = verbOperation(v)
	o.Tags = []string{"seed"}
	var in struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(v.Input, &in); err != nil {
		return "", "", o, err
	}
	if v.Name == "platform_audit_log" {
		o.OperationID, o.RequestBody, o.Parameters = "audit_logs", nil, nil
		for _, name := range v.Parameters() {
			o.Parameters = append(o.Parameters, object{"name": name, "in": "query", "schema": in.Properties[name]})
		}
		return "/api/v1/audit_logs", "get", o, nil
	}
	o.OperationID = "apply_template"
	o.Parameters = append(o.Parameters, object{"name": "id", "in": "path", "required": true, "schema": in.Properties["node_id"]})
	delete(in.Properties, "node_id")
	o.RequestBody = &requestBody{Content: jsonContent(object{"type": "object", "properties": in.Properties, "additionalProperties": false})}
	return "/api/v1/system/nodes/{id}/apply_template", "post", o, nil
}

// addPeople describes people's surface from the shapes that its requests are held to.
func addPeople(paths map[string]map[string]operation) error {
	free := json.RawMessage(`{"type":"object","additionalProperties":true}`)
	describe := func(id, summary, description string) operation {
		return operation{OperationID: id, Summary: summary, Description: description, Tags: []string{"people"}, Responses: responses(free)}
	}
	operationID := object{"name": "id", "in": "path", "required": true, "schema": object{"type": "string", "format": "uuid"}}
	category := object{"name": "category", "in": "path", "required": true, "schema": object{"type": "string"}}

	list := describe("list_operations", "List parked calls", "A person's credential, operator or above. Latest first, in pages: data has operations, count, has_more and next_cursor.")
	policy := describe("get_policy", "What applies to an action category", "With a verdict in the query, statement is what a person signs: its compact JSON, "+
		"keys in the order given, with statement set to \"powernode policy v1\". Its policy_id and chain go with the signature.")
	policy.Parameters = []object{category}
	for _, each := range []struct {
		into  *operation
		shape string
	}{{&list, operationsQueryShape}, {&policy, policyQueryShape}} {
		parameters, err := queryParameters(each.shape)
		if err != nil {
			return fmt.Errorf("describe the query of %s: %w", each.into.OperationID, err)
		}
		each.into.Parameters = append(each.into.Parameters, parameters...)
	}
	show := describe("get_operation", "A parked call with what it would do", "statement is what a person signs: its compact JSON, keys in the order given, "+
		"with statement set to \"powernode decision v1\", and decision and comment filled in.")
	show.Parameters = []object{operationID}
	approve := describe("approve_operation", "Approve a parked call", "Signed by the human key. It runs at once, as whoever asked for it; data.failed says why it could not.")
	reject := describe("reject_operation", "Reject a parked call", "Signed by the human key.")
	for _, o := range []*operation{&approve, &reject} {
		o.Parameters = []object{operationID}
		o.RequestBody = &requestBody{Required: true, Content: jsonContent(json.RawMessage(decisionShape))}
	}
	set := describe("set_policy", "Set a policy", "Signed by the human key of an administrator.")
	set.Parameters = []object{category}
	set.RequestBody = &requestBody{Required: true, Content: jsonContent(json.RawMessage(policyShape))}
	unset := describe("unset_policy", "Take a policy back", "Signed by the human key of an administrator.")
	unset.Parameters = []object{category}
	unset.RequestBody = &requestBody{Required: true, Content: jsonContent(json.RawMessage(unsetPolicyShape))}

	paths["/api/v1/operations"] = map[string]operation{"get": list}
	paths["/api/v1/operations/{id}"] = map[string]operation{"get": show}
	paths["/api/v1/operations/{id}/approve"] = map[string]operation{"post": approve}
	paths["/api/v1/operations/{id}/reject"] = map[string]operation{"post": reject}
	paths["/api/v1/policies"] = map[string]operation{"get": describe("list_policies", "Every action category with what applies", "A person's credential.")}
	paths["/api/v1/policies/{category}"] = map[string]operation{"get": policy, "put": set, "delete": unset}
	return nil
}

func queryParameters(shape string) ([]object, error) {
	d, err := schema.NewDocument(json.RawMessage(shape))
	if err != nil {
		return nil, err
	}
	var in struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal([]byte(shape), &in); err != nil {
		return nil, err
	}
	var out []object
	for _, name := range d.Shape().Names {
		out = append(out, object{"name": name, "in": "query", "schema": in.Properties[name]})
	}
	return out, nil
}

func components() object {
	ref := func(name string) object { return object{"$ref": "#/components/schemas/" + name} }
	codes := []schema.Code{schema.InvalidArguments, schema.NotFound, schema.Conflict, schema.PreconditionFailed, schema.PermissionDenied,
		schema.BlockedByPolicy, schema.Unavailable, schema.Internal}
	failed := object{"type": "object", "required": []string{"success", "error"}, "additionalProperties": false,
		"properties": object{"success": object{"const": false}, "error": ref("Error")}}
	return object{
		"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer", "description": "A token of powernode token."}},
		"parameters": object{"CallID": object{"name": CallIDHeader, "in": "header", "description": "Makes a call repeatable: the same verb and " +
			"body under the same id is done once, and answered for an hour as it was at first.", "schema": object{"type": "string", "minLength": 1, "maxLength": maxCallID}}},
		"schemas": object{
			"Error": object{"type": "object", "required": []string{"code", "message", "details", "hint", "retryable"}, "properties": object{
				"code":      object{"type": "string", "enum": codes},
				"message":   object{"type": "string"},
				"details":   object{"type": []string{"object", "null"}, "additionalProperties": true},
				"hint":      object{"anyOf": []object{ref("Hint"), {"type": "null"}}},
				"retryable": object{"type": "boolean"},
				"class":     object{"type": "string", "description": "The platform's own name of the error, where it has one."}}},
			"Hint": object{"type": "object", "required": []string{"verb", "text"}, "properties": object{
				"verb": object{"type": "string"}, "text": object{"type": "string"}}},
			"Parked": object{"type": "object",
				"required": []string{"pending", "deferred_operation_id", "action_category", "plan_digest", "expires_at", "message"},
				"properties": object{"pending": object{"const": true}, "deferred_operation_id": object{"type": "string"},
					"action_category": object{"type": "string"}, "plan_digest": object{"type": "string"},
					"expires_at": object{"type": "string", "format": "date-time"}, "message": object{"type": "string"}}},
		},
		"responses": object{
			"Parked":          object{"description": "A person must decide the call first.", "content": jsonContent(wrapped(ref("Parked")))},
			"Unauthenticated": object{"description": "There is no valid credential.", "content": jsonContent(failed)},
			"Refused":         object{"description": refusedText(codes), "content": jsonContent(failed)},
		},
	}
}

// refusedText says which status stands for which code.
func refusedText(codes []schema.Code) string {
	text := "Refused, and nothing was changed, or a fault of ours:"
	for i, code := range codes {
		if i > 0 {
			text += ","
		}
		text += " " + string(code) + " " + strconv.Itoa(code.HTTPStatus())
	}
	return text + "."
}

// openAPI answers the document of this platform's verbs, without an envelope.
func (f *Face) openAPI() answerer {
	made := sync.OnceValues(func() (json.RawMessage, error) { // whoever asks for it needs no credential, and costs nothing
		verbs := make([]*schema.Verb, 0, len(f.Platform.Verbs()))
		for _, d := range f.Platform.Verbs() {
			verbs = append(verbs, d.Contract())
		}
		return OpenAPI(verbs, f.Version)
	})
	return func(http.ResponseWriter, *http.Request, tools.Caller) (answer, error) {
		out, err := made()
		return answer{data: out, bare: true}, err
	}
}
