package tools

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"powernode/schema"
)

// place is where a list goes on: after the row with the key, or at the position where that row is gone. Sum binds it
// to the verb and its filter.
type place struct {
	Sum      []byte `json:"s"`
	Key      string `json:"k"`
	Position int    `json:"p"`
}

// page cuts a list's rows to one page. filter is what the call narrows the list by: a cursor of another is refused.
func page[T any](verb string, filter any, limit int, cursor string, rows []T, key func(T) string) ([]T, Page, error) {
	sum, err := cursorSum(verb, filter)
	if err != nil {
		return nil, Page{}, err
	}
	start := 0
	if cursor != "" {
		c, ok := readCursor(cursor)
		if !ok || string(c.Sum) != string(sum) {
			return nil, Page{}, errCursor(cursor)
		}
		start = min(c.Position, len(rows))
		for i, row := range rows {
			if key(row) == c.Key {
				start = i + 1
				break
			}
		}
	}
	if limit <= 0 {
		limit = len(rows)
	}
	end := min(start+limit, len(rows))
	out := append([]T{}, rows[start:end]...)
	answer := Page{Count: int64(len(rows)), HasMore: end < len(rows)}
	if answer.HasMore && end > start {
		if answer.NextCursor, err = (place{Sum: sum, Key: key(rows[end-1]), Position: end}).spelt(); err != nil {
			return nil, Page{}, err
		}
	}
	return out, answer, nil
}

func errCursor(given string) error {
	return schema.InvalidArgument("/cursor", given, "cursor is not one that this verb issued")
}

// spelt is the place as a cursor.
func (p place) spelt() (*string, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode a cursor: %w", err)
	}
	cursor := base64.RawURLEncoding.EncodeToString(raw)
	return &cursor, nil
}

func cursorSum(verb string, filter any) ([]byte, error) {
	spelt, err := json.Marshal([]any{verb, filter})
	if err != nil {
		return nil, fmt.Errorf("encode the filter of a cursor: %w", err)
	}
	sum := sha256.Sum256(spelt)
	return sum[:8], nil
}

func readCursor(spelt string) (place, bool) {
	var c place
	raw, err := base64.RawURLEncoding.DecodeString(spelt)
	if err != nil || json.Unmarshal(raw, &c) != nil || c.Position < 0 {
		return place{}, false
	}
	return c, true
}
