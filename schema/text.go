package schema

import (
	"encoding/json"
	"strconv"
	"strings"
)

// FromText reads what stands as text on a command line or in a URL by the declared type, as a value that encodes to JSON.
// What can't be read so stays text, and so does everything where s is nil: validation explains it better than a reader.
func (s *Shape) FromText(text string) any {
	if s == nil {
		return text
	}
	switch s.Type {
	case "boolean":
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case "integer", "number":
		if n := json.Number(text); json.Valid([]byte(text)) && measurable(n) && strings.Trim(text, "+-.eE0123456789") == "" {
			return n
		}
	case "object":
		if strings.HasPrefix(strings.TrimSpace(text), "{") && json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	case "array":
		if strings.HasPrefix(strings.TrimSpace(text), "[") && json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	}
	if s.Nullable && text == "null" {
		return nil
	}
	return text
}
