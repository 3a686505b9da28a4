package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a call's arguments (contract 12.9).
const (
	MaxArguments     = 1 << 20
	MaxFreeForm      = 64 << 10
	MaxFreeFormDepth = 16
	maxDepth         = 64
	maxDigits        = 400
)

// object is a JSON object with its keys in the order in which they were written.
type object struct {
	keys   []string
	values map[string]any
}

// parseTree decodes raw JSON without losing what decoding into Go values loses: duplicate keys and bytes that are no
// UTF-8 are refused. Objects are *object, arrays []any, numbers json.Number.
func parseTree(raw []byte) (any, error) {
	if len(raw) > MaxArguments {
		return nil, fmt.Errorf("arguments are %d bytes, at most %d are taken", len(raw), MaxArguments)
	}
	if !utf8.Valid(raw) || loneSurrogate(raw) {
		return nil, errors.New("arguments are not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := parseValue(dec, nil)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("arguments must be one JSON object, and something follows it")
	}
	return v, nil
}

// twiceError is a key that an object has two of.
type twiceError struct {
	key  string
	path []string // to the key itself
}

func (e *twiceError) Error() string { return "key " + quote(e.key) + " is given twice" }

// parseValue reads the value at a path.
func parseValue(dec *json.Decoder, path []string) (any, error) {
	if len(path) > maxDepth {
		return nil, fmt.Errorf("arguments are nested deeper than %d levels", maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, notJSON(dec, err)
	}
	switch tok {
	case json.Delim('{'):
		return parseObject(dec, path)
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := parseValue(dec, append(path, strconv.Itoa(len(list))))
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		if _, err := dec.Token(); err != nil {
			return nil, notJSON(dec, err)
		}
		return list, nil
	}
	if number, ok := tok.(json.Number); ok && !measurable(number) {
		return nil, fmt.Errorf("number %s is out of range", cut(string(number)))
	}
	return tok, nil
}

// notJSON says where reading ended, in no words of the decoder.
func notJSON(dec *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("arguments are not valid JSON: they break off")
	}
	return fmt.Errorf("arguments are not valid JSON after byte %d", dec.InputOffset())
}

// measurable says whether a number has a size that can be worked with: an exponent of a billion has not.
func measurable(number json.Number) bool {
	f, err := number.Float64()
	i := strings.IndexAny(string(number), "eE")
	return err == nil && !math.IsInf(f, 0) && len(number) <= maxDigits && (i < 0 || len(number)-i <= len("e+308"))
}

// loneSurrogate says whether an escape names half a character, which decoding would replace silently.
func loneSurrogate(raw []byte) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		if raw[i] != 'u' {
			continue
		}
		switch r := escaped(raw, i+1); {
		case r >= 0xdc00 && r < 0xe000:
			return true
		case r >= 0xd800 && r < 0xdc00:
			if i+6 >= len(raw) || raw[i+5] != '\\' || raw[i+6] != 'u' {
				return true
			}
			if low := escaped(raw, i+7); low < 0xdc00 || low >= 0xe000 {
				return true
			}
			i += 10
		}
	}
	return false
}

// escaped reads four hexadecimal digits; what is none is no matter here, the decoder refuses it.
func escaped(raw []byte, at int) rune {
	if at+4 > len(raw) {
		return 0
	}
	n, err := strconv.ParseUint(string(raw[at:at+4]), 16, 32)
	if err != nil {
		return 0
	}
	return rune(n)
}

func parseObject(dec *json.Decoder, path []string) (*object, error) {
	o := &object{values: map[string]any{}}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, notJSON(dec, err)
		}
		key, ok := tok.(string)
		if !ok {
			return nil, errors.New("arguments are not valid JSON: a key must be a string")
		}
		if _, twice := o.values[key]; twice {
			return nil, &twiceError{key, append(path, key)}
		}
		v, err := parseValue(dec, append(path, key))
		if err != nil {
			return nil, err
		}
		o.keys = append(o.keys, key)
		o.values[key] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, notJSON(dec, err)
	}
	return o, nil
}

// plain turns a tree into the values that encoding/json and the schema library know.
func plain(v any) any {
	switch v := v.(type) {
	case *object:
		m := make(map[string]any, len(v.keys))
		for _, k := range v.keys {
			m[k] = plain(v.values[k])
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(v[i])
		}
		return list
	}
	return v
}

func depthOf(v any) int {
	deepest := 0
	switch v := v.(type) {
	case *object:
		for _, k := range v.keys {
			deepest = max(deepest, depthOf(v.values[k]))
		}
		return deepest + 1
	case []any:
		for i := range v {
			deepest = max(deepest, depthOf(v[i]))
		}
		return deepest + 1
	}
	return 0
}
