package docs

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// References are the values that calls saved, by name.
type References map[string]any

var reference = regexp.MustCompile(`<([a-z][a-z0-9_]*)>`)

// Names are the references within a value of arguments or checks.
func Names(v any) []string {
	raw, _ := json.Marshal(v) // plain data that came from YAML
	text := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(raw))
	var names []string
	for _, m := range reference.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// Fill replaces the references within a value. A text that is one reference becomes the saved value.
func (r References) Fill(v any) (any, error) {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case Object:
		out := make(Object, len(v))
		for key, value := range v {
			filled, err := r.Fill(value)
			if err != nil {
				return nil, err
			}
			out[key] = filled
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, value := range v {
			filled, err := r.Fill(value)
			if err != nil {
				return nil, err
			}
			out[i] = filled
		}
		return out, nil
	}
	return v, nil
}

// Text is Fill for a text.
func (r References) Text(s string) (string, error) {
	v, err := r.text(s)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(v), nil
}

func (r References) text(s string) (any, error) {
	var unknown error
	value := func(name string) any {
		v, ok := r[name]
		if !ok {
			unknown = fmt.Errorf("nothing was saved as %q", name)
		}
		return v
	}
	if m := reference.FindStringSubmatch(s); m != nil && m[0] == s {
		return value(m[1]), unknown
	}
	out := reference.ReplaceAllStringFunc(s, func(found string) string {
		return fmt.Sprint(value(strings.Trim(found, "<>")))
	})
	return out, unknown
}

// Keep saves values of an answer under the names of a call.
func (r References) Keep(answer any, save map[string]string) error {
	for name, path := range save {
		v, err := r.At(answer, path)
		if err != nil {
			return err
		}
		if v == nil {
			return fmt.Errorf("save %s: the answer has no %s: %s", name, path, short(answer))
		}
		r[name] = v
	}
	return nil
}

// At walks into an answer: `instance.status`, `nodes[0].role`, `nodes[name=a-1].status`; nil is what is not there.
// `|address` at the end is the address of a prefix.
func (r References) At(answer any, path string) (any, error) {
	path, err := r.Text(path)
	if err != nil {
		return nil, err
	}
	path, filter, _ := strings.Cut(path, "|")
	v := answer
	for path != "" {
		var step string
		step, path = nextStep(path)
		v = into(v, step)
	}
	if filter != "address" || v == nil {
		return v, nil
	}
	p, err := netip.ParsePrefix(fmt.Sprint(v))
	if err != nil {
		return nil, err
	}
	return p.Addr().String(), nil
}

// nextStep takes `[…]` or a key off the path.
func nextStep(path string) (step, rest string) {
	if strings.HasPrefix(path, "[") {
		end := strings.Index(path, "]")
		return path[:end+1], strings.TrimPrefix(path[end+1:], ".")
	}
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		return path, ""
	}
	return path[:end], strings.TrimPrefix(path[end:], ".")
}

func into(v any, step string) any {
	inside, isList := strings.CutPrefix(step, "[")
	if !isList {
		o, _ := v.(Object)
		return o[step]
	}
	list, _ := v.([]any)
	inside = strings.TrimSuffix(inside, "]")
	key, want, byKey := strings.Cut(inside, "=")
	if !byKey {
		i, err := strconv.Atoi(inside)
		if err != nil || i >= len(list) {
			return nil
		}
		return list[i]
	}
	i := slices.IndexFunc(list, func(each any) bool {
		o, _ := each.(Object)
		value, there := o[key]
		return there && fmt.Sprint(value) == want
	})
	if i < 0 {
		return nil
	}
	return list[i]
}

// Missing says what of a check an answer does not fulfil; "" is all well.
func (r References) Missing(answer any, c Check) (string, error) {
	var missing []string
	note := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	at := func(path string) any {
		v, err := r.At(answer, path)
		if err != nil {
			note("%s: %v", path, err)
		}
		return v
	}
	for path, want := range c.Want {
		filled, err := r.Fill(want)
		if err != nil {
			return "", err
		}
		if got := at(path); !same(got, filled) {
			note("%s is %s, want %s", path, short(got), short(filled))
		}
	}
	for path, want := range c.Contains {
		if got, _ := at(path).(string); !strings.Contains(got, want) {
			note("%s is %s, want %q in it", path, short(got), want)
		}
	}
	for path, other := range c.Differ {
		filled, err := r.Fill(other)
		if err != nil {
			return "", err
		}
		if got := at(path); got == nil || same(got, filled) {
			note("%s is %s, want another value", path, short(got))
		}
	}
	for path, prefix := range c.WithinPrefix {
		filled, err := r.Text(prefix)
		if err != nil {
			return "", err
		}
		if got := fmt.Sprint(at(path)); !within(got, filled) {
			note("%s is %s, want an address in %s", path, got, filled)
		}
	}
	for _, path := range c.Present {
		if got := at(path); got == nil || got == "" {
			note("%s is not there", path)
		}
	}
	for _, path := range c.Absent {
		if got := at(path); got != nil {
			note("%s is there: %s", path, short(got))
		}
	}
	for path, want := range c.Count {
		list, ok := at(path).([]any)
		if !ok || len(list) != want {
			note("%s has %d entries, want %d", path, len(list), want)
		}
	}
	for _, text := range c.Nowhere {
		filled, err := r.Text(text)
		if err != nil {
			return "", err
		}
		if strings.Contains(encoded(answer), filled) {
			note("%s stands in the answer", filled)
		}
	}
	if len(missing) == 0 {
		return "", nil
	}
	slices.Sort(missing)
	return strings.Join(missing, "; ") + "; the answer: " + short(answer), nil
}

// same compares as JSON does: a number is a number.
func same(a, b any) bool { return reflect.DeepEqual(normal(a), normal(b)) }

func normal(v any) any {
	var out any
	if json.Unmarshal([]byte(encoded(v)), &out) != nil {
		return v
	}
	return out
}

func within(address, prefix string) bool {
	a, err := netip.ParseAddr(address)
	p, perr := netip.ParsePrefix(prefix)
	return err == nil && perr == nil && p.Contains(a)
}

func encoded(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(raw)
}

func short(v any) string {
	s := encoded(v)
	if len(s) > 1500 {
		return s[:1500] + "…"
	}
	return s
}
