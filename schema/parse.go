package schema

// ParseVerb reads a declaration that is not one of the contract's, for a server of other tools.
func ParseVerb(raw []byte) (*Verb, error) { return parseVerb(raw) }
