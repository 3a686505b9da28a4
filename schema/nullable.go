package schema

import "encoding/json"

// Nullable is an argument for which absent, null and a value are three things: null clears.
type Nullable[T any] struct {
	Set   bool // the key was given
	Value *T   // nil: null was given
}

// UnmarshalJSON marks the argument as given.
func (n *Nullable[T]) UnmarshalJSON(raw []byte) error {
	n.Set = true
	if string(raw) == "null" {
		return nil
	}
	n.Value = new(T)
	return json.Unmarshal(raw, n.Value)
}
