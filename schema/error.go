package schema

import (
	"errors"
	"fmt"
)

// Code is the fixed code of an error at the boundary.
type Code string

// Codes of the contract.
const (
	InvalidArguments   Code = "invalid_arguments"
	NotFound           Code = "not_found"
	Conflict           Code = "conflict"
	PreconditionFailed Code = "precondition_failed"
	PermissionDenied   Code = "permission_denied"
	BlockedByPolicy    Code = "blocked_by_policy"
	Unavailable        Code = "unavailable"
	Internal           Code = "internal"
)

// HTTPStatus is the status of REST and of the agent API for a code.
func (c Code) HTTPStatus() int {
	switch c {
	case InvalidArguments:
		return 400
	case NotFound:
		return 404
	case Conflict:
		return 409
	case PreconditionFailed:
		return 412
	case PermissionDenied, BlockedByPolicy:
		return 403
	case Unavailable:
		return 503
	default:
		return 500
	}
}

// Hint names the verb to call next, and why.
type Hint struct {
	Verb string `json:"verb"`
	Text string `json:"text"`
}

// Error is what a caller sees of a refusal or a fault. Its message is for people and models and holds no secret.
type Error struct {
	Code      Code           `json:"code"`
	Message   string         `json:"message"`
	Details   map[string]any `json:"details"`
	Hint      *Hint          `json:"hint"`
	Retryable bool           `json:"retryable"`
	// Class is the platform's own name of the error (AmbiguousClusterError), where the contract has one.
	Class string `json:"class,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is true for another *Error of the same code, so that tests compare codes, not texts.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// Errorf makes a coded error without details.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Retryable: code == Unavailable}
}

// WithDetail returns the error with one more detail.
func (e *Error) WithDetail(key string, value any) *Error {
	details := make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		details[k] = v
	}
	details[key] = value
	c := *e
	c.Details = details
	return &c
}

// WithCandidates returns the error of an argument with what may have been meant.
func (e *Error) WithCandidates(candidates []string) *Error {
	if candidates == nil {
		candidates = []string{}
	}
	c := e.WithDetail("candidates", candidates)
	if found, ok := c.Details["violations"].([]Violation); ok && len(found) > 0 {
		found = append([]Violation{}, found...)
		found[0].Candidates = candidates
		c.Details["violations"] = found
	}
	return c
}

// WithHint returns the error with the verb to call next.
func (e *Error) WithHint(verb, text string) *Error {
	c := *e
	c.Hint = &Hint{Verb: verb, Text: text}
	return &c
}

// AsRetryable returns the error marked as one that passes by itself.
func (e *Error) AsRetryable() *Error {
	c := *e
	c.Retryable = true
	return &c
}

// Under returns the error of arguments that stand inside other arguments: its pointers begin with the given one.
func (e *Error) Under(prefix string) *Error {
	if e.Code != InvalidArguments || prefix == "" {
		return e
	}
	c := *e
	c.Details = make(map[string]any, len(e.Details))
	for k, v := range e.Details {
		c.Details[k] = v
	}
	if p, ok := c.Details["pointer"].(string); ok {
		c.Details["pointer"] = prefix + p
	}
	if found, ok := c.Details["violations"].([]Violation); ok {
		moved := make([]Violation, len(found))
		for i, v := range found {
			v.Pointer = prefix + v.Pointer
			moved[i] = v
		}
		c.Details["violations"] = moved
	}
	return &c
}

// CodeOf is the code of an error chain; what has none is Internal, nil is "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// Violation is one thing wrong with a call's arguments.
type Violation struct {
	Pointer    string   `json:"pointer"`
	Problem    string   `json:"problem"` // missing, undeclared, type, value, combination
	Value      any      `json:"value"`
	Candidates []string `json:"candidates"`

	text     string   // the sentence, of type, value and combination
	name     string   // the name as messages say it, of missing and undeclared
	declared []string // the keys declared where an undeclared one was found
	hint     *Hint
}

// Text is the violation as one sentence.
func (v Violation) Text() string {
	switch v.Problem {
	case "missing":
		return "Missing required parameters: " + v.name
	case "undeclared":
		return "Undeclared parameters: " + withSuggestion(v)
	}
	return v.text
}
