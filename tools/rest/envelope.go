package rest

import (
	"encoding/json"
	"errors"

	"powernode/schema"
	"powernode/tools"
)

// Envelope is how REST and the command line wrap a call's answer.
type Envelope struct {
	Success bool            `json:"success"`
	Data    json.RawMessage `json:"data,omitempty"`
	Error   *schema.Error   `json:"error,omitempty"`
}

// Wrap makes the envelope of a call's answer. An error without a code is no answer and comes back as it is.
func Wrap(result json.RawMessage, err error) (Envelope, error) {
	var coded *schema.Error
	var unknown *tools.UnknownVerbError
	switch {
	case err == nil:
		return Envelope{Success: true, Data: result}, nil
	case errors.As(err, &coded):
		return Envelope{Error: coded}, nil
	case errors.As(err, &unknown):
		return Envelope{Error: schema.Errorf(schema.NotFound, "unknown verb %s", schema.Printable(unknown.Name)).
			WithDetail("candidates", unknown.Candidates).WithHint("platform_search_verbs", "Finds verbs by what they do.")}, nil
	}
	return Envelope{}, err
}
