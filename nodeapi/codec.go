package nodeapi

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"powernode/sdwan"
)

// Sizes beyond which a message is refused unread.
const (
	maxEnrollBytes    = 64 << 10
	maxReportBytes    = 4 << 20
	maxHandshakeBytes = 256 << 10
	maxDeviceBytes    = 4 << 10
	maxAnswerBytes    = 1 << 20
	maxDocumentBytes  = 32 << 20
)

// maxDepth bounds the nesting of a message, so that a hostile one can't exhaust the stack.
const maxDepth = 64

// FieldError is a message that is JSON but not what was declared. Pointer names the place (RFC 6901).
type FieldError struct {
	Pointer string
	Problem string
}

func (e *FieldError) Error() string {
	p := e.Pointer
	if p == "" {
		p = "/"
	}
	return p + ": " + e.Problem
}

// DecodeDocument reads a desired document, for the agent's copy on disk.
func DecodeDocument(data []byte) (*sdwan.Document, error) {
	d, err := decode[sdwan.Document](data, maxDocumentBytes)
	if err != nil {
		return nil, err
	}
	if err := validateDocument(&d); err != nil {
		return nil, err
	}
	return &d, nil
}

// EncodeDocument writes what DecodeDocument reads.
func EncodeDocument(d *sdwan.Document) ([]byte, error) { return encode(d, maxDocumentBytes) }

// DecodeReport reads a report.
func DecodeReport(data []byte) (sdwan.Report, error) {
	r, err := decode[sdwan.Report](data, maxReportBytes)
	if err != nil {
		return r, err
	}
	return r, validateReport(&r)
}

// DecodeEnrollment reads what a machine was handed to enrol with.
func DecodeEnrollment(data []byte) (Enrollment, error) {
	e, err := decode[Enrollment](data, maxEnrollBytes)
	if err != nil {
		return e, err
	}
	return e, e.validate()
}

// decode reads exactly one JSON value of at most limit bytes into a T. Keys that T does not declare, doubled keys,
// keys in another case and anything after the value are errors.
func decode[T any](data []byte, limit int) (T, error) {
	var v T
	if len(data) > limit {
		return v, fmt.Errorf("message of %d bytes, at most %d are allowed", len(data), limit)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := checkValue(dec, reflect.TypeFor[T](), "", 0); err != nil {
		return v, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return v, errors.New("data after the JSON value")
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, asFieldError(err)
	}
	return v, nil
}

// asFieldError tells a value of the wrong type, which is a wrong field, from bytes that are no JSON.
func asFieldError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return &FieldError{Pointer: "/" + strings.ReplaceAll(wrong.Field, ".", "/"), Problem: "is " + wrong.Value + ", not " + wrong.Type.String()}
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("no JSON: %w", err)
	}
	return &FieldError{Problem: err.Error()}
}

// encode writes v, refusing what the other side would refuse for its size.
func encode(v any, limit int) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("encode %T: %d bytes, at most %d are allowed", v, len(data), limit)
	}
	return data, nil
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// checkValue walks one value of the stream beside the Go type that it will be decoded into. encoding/json alone takes
// doubled keys and keys in any case.
func checkValue(dec *json.Decoder, t reflect.Type, at string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	switch tok {
	case json.Delim('{'):
		return checkObject(dec, t, at, depth)
	case json.Delim('['):
		return checkArray(dec, t, at, depth)
	}
	return nil
}

func checkObject(dec *json.Decoder, t reflect.Type, at string, depth int) error {
	fields, elem := memberTypes(t)
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return fmt.Errorf("no JSON: %w", err)
		}
		key, ok := tok.(string)
		if !ok {
			return errors.New("no JSON: an object's key is no string")
		}
		here := at + "/" + escapePointer(key)
		if seen[key] {
			return &FieldError{here, "key given twice"}
		}
		seen[key] = true
		child := elem
		if fields != nil {
			if child, ok = fields[key]; !ok {
				return &FieldError{here, "undeclared key"}
			}
		}
		if err := checkValue(dec, child, here, depth+1); err != nil {
			return err
		}
	}
	return endOf(dec)
}

func checkArray(dec *json.Decoder, t reflect.Type, at string, depth int) error {
	var elem reflect.Type
	if t = deref(t); t != nil && !opaque(t) && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		elem = t.Elem()
	}
	for i := 0; dec.More(); i++ {
		if err := checkValue(dec, elem, fmt.Sprintf("%s/%d", at, i), depth+1); err != nil {
			return err
		}
	}
	return endOf(dec)
}

func endOf(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return nil
}

func escapePointer(key string) string {
	if len(key) > 64 {
		key = key[:64] + "…"
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

func deref(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// opaque types read themselves: raw messages, times, addresses. Below them only doubled keys are looked for.
func opaque(t reflect.Type) bool {
	return t == reflect.TypeFor[json.RawMessage]() || reflect.PointerTo(t).Implements(textUnmarshaler)
}

// memberTypes answers a struct's declared keys, or a map's element type; two nils allow any key.
func memberTypes(t reflect.Type) (fields map[string]reflect.Type, elem reflect.Type) {
	t = deref(t)
	switch {
	case t == nil || opaque(t):
		return nil, nil
	case t.Kind() == reflect.Map:
		return nil, t.Elem()
	case t.Kind() == reflect.Struct:
		return structFields(t), nil
	}
	return nil, nil
}

// fieldCache keeps what reflection found of a type; types never change.
var fieldCache sync.Map // reflect.Type → map[string]reflect.Type

func structFields(t reflect.Type) map[string]reflect.Type {
	if v, ok := fieldCache.Load(t); ok {
		return v.(map[string]reflect.Type)
	}
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = f.Type
	}
	fieldCache.Store(t, fields)
	return fields
}
