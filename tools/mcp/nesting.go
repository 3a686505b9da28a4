package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"
)

// maxNesting is how deep a message may be nested: decoding takes no more.
const maxNesting = 10_000

// tooDeep says whether a message is an object that is nested deeper than decoding takes, and what its id is then; nil: none
// that can be told. It goes token by token, which no nesting stops.
func tooDeep(raw []byte) (id json.RawMessage, deep bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if start, err := dec.Token(); err != nil || start != json.Delim('{') || !utf8.Valid(raw) {
		return nil, false
	}
	key, ids := "", 0
	named := false // a key of the message waits for its value
	for depth := 1; depth > 0; {
		at := dec.InputOffset()
		token, err := dec.Token()
		if err != nil {
			return nil, false
		}
		switch delim, is := token.(json.Delim); {
		case is && (delim == '{' || delim == '['):
			depth++
			deep = deep || depth > maxNesting
		case is:
			depth--
			named = named && depth > 1
		case depth > 1:
		case !named:
			key, named = token.(string), true // the decoder takes no other
			if key == "id" {
				ids++
			}
		default:
			if value := bytes.TrimLeft(raw[at:dec.InputOffset()], " \t\r\n:"); key == "id" && isID(value) {
				id = value
			}
			named = false
		}
	}
	if ids > 1 {
		id = nil
	}
	_, err := dec.Token()
	return id, deep && errors.Is(err, io.EOF)
}
