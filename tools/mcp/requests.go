package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/mark3labs/mcp-go/mcp"

	"powernode/schema"
)

func invalidParams(format string, args ...any) *ProtocolError {
	return &ProtocolError{Code: codeInvalidParams, Message: "Invalid params: " + fmt.Sprintf(format, args...)}
}

// checkRequest refuses what the SDK would refuse in words of its own, or take for something else.
func (s *Server) checkRequest(x *exchange) error {
	p := map[string]json.RawMessage{}
	if x.params != nil && json.Unmarshal(x.params, &p) != nil {
		return nil // parameters of another type: the SDK finds it, and it is told in our words
	}
	// text is a parameter; false: it is of another type, which the SDK finds too.
	text := func(key string) (value string, ok bool) {
		ok = p[key] == nil || json.Unmarshal(p[key], &value) == nil
		return value, ok
	}
	handshake := !sdk.IsModernProtocol(x.version()) // its methods are none of the stateless era
	switch sdk.MCPMethod(x.method) {
	case sdk.MethodToolsList, sdk.MethodResourcesList, sdk.MethodResourcesTemplatesList, sdk.MethodPromptsList:
		if cursor, _ := text("cursor"); cursor != "" {
			return invalidParams("cursor is none that this server gave: each of its lists is one page")
		}
	case sdk.MethodResourcesRead, sdk.MethodResourcesSubscribe, sdk.MethodResourcesUnsubscribe:
		if uri, ok := text("uri"); ok && uri == "" && (handshake || x.method == string(sdk.MethodResourcesRead)) {
			return invalidParams("%s needs the uri of a resource", x.method)
		}
	case sdk.MethodPromptsGet:
		if name, ok := text("name"); ok && s.prompts[name] == nil {
			return s.unknownPrompt(name)
		}
	case sdk.MethodSetLogLevel:
		if level, ok := text("level"); ok && handshake && !slices.Contains(levels, sdk.LoggingLevel(level)) {
			return invalidParams("level %.64q is none: there are %s", level, spelled(levels))
		}
	}
	return nil
}

// levels are those of log messages, of the least to the most severe.
var levels = []sdk.LoggingLevel{sdk.LoggingLevelDebug, sdk.LoggingLevelInfo, sdk.LoggingLevelNotice, sdk.LoggingLevelWarning,
	sdk.LoggingLevelError, sdk.LoggingLevelCritical, sdk.LoggingLevelAlert, sdk.LoggingLevelEmergency}

func spelled(all []sdk.LoggingLevel) string {
	words := make([]string, len(all))
	for i, l := range all {
		words[i] = string(l)
	}
	return strings.Join(words, ", ")
}

func (s *Server) unknownPrompt(name string) *ProtocolError {
	if name == "" {
		return invalidParams("the name of a prompt is needed")
	}
	names := make([]string, len(s.Catalogue.Prompts))
	for i, p := range s.Catalogue.Prompts {
		names[i] = p.Listed.Name
	}
	e := invalidParams("unknown prompt %.64q", name)
	if near := schema.Nearest(name, names); near != "" {
		e.Message += " (did you mean " + near + "?)"
	}
	return e
}

// checkReference refuses a completion of an argument that nothing has.
func (s *Server) checkReference(ref Reference) error {
	var of string
	var arguments []string
	switch {
	case ref.Template == "":
		p, ok := s.prompts[ref.Prompt]
		if !ok {
			return s.unknownPrompt(ref.Prompt)
		}
		of = "prompt " + ref.Prompt
		for _, a := range p.Listed.Arguments {
			arguments = append(arguments, a.Name)
		}
	case slices.ContainsFunc(s.Catalogue.Resources, func(r Resource) bool { return r.Listed.URI == ref.Template }):
		of = "resource " + ref.Template
	default:
		i := slices.IndexFunc(s.Catalogue.Templates, func(t ResourceTemplate) bool { return t.Listed.URITemplate.Raw() == ref.Template })
		if i < 0 {
			return invalidParams("unknown resource %.200q: resources/templates/list has those with arguments", ref.Template)
		}
		of, arguments = "resource "+ref.Template, s.Catalogue.Templates[i].Listed.URITemplate.Varnames()
	}
	if !slices.Contains(arguments, ref.Argument) {
		return invalidParams("%s has no argument %.64q", of, ref.Argument)
	}
	return nil
}

// refusedBy is what the SDK refused a request with, in words for a client: its own go on in those of Go.
func (x *exchange) refusedBy(e sdk.JSONRPCErrorDetails) *ProtocolError {
	text := e.Message
	switch {
	case strings.HasPrefix(text, "unparsable "):
		return invalidParams("%s takes a value of another type", x.method)
	case x.method == string(sdk.MethodResourcesRead) && (e.Code == sdk.RESOURCE_NOT_FOUND || strings.HasPrefix(text, "handler not found")):
		text = fmt.Sprintf("Resource not found: %.200q", x.uri())
	case e.Code == sdk.METHOD_NOT_FOUND:
		text = fmt.Sprintf("Method not found: %.64q", x.method)
		if beyond := strings.Index(e.Message, "protocol version"); beyond >= 0 {
			text += " in the revision of the protocol that this request is of"
		}
	}
	// The SDK repeats what a client has written, however long it is.
	return &ProtocolError{Code: e.Code, Message: schema.Message(text), Data: e.Data}
}

// mismatched is which header of a request does not say what its body says.
func mismatched(err error) string {
	var m sdk.HeaderMismatchError
	if errors.As(err, &m) {
		return schema.Message(m.Header + ": " + m.Reason)
	}
	return schema.Message(err.Error())
}
