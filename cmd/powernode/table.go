package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"powernode/platform/governance"
)

const (
	// maxCell is how many characters of a value a list shows, maxValue how many stand alone.
	maxCell  = 48
	maxValue = 400
)

// printTable shows a result to a person: single values first, then each list as a table. It is for reading; scripts take
// JSON.
func printTable(w io.Writer, result json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(result))
	dec.UseNumber()
	tree, err := inWrittenOrder(dec)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	var out bytes.Buffer
	root, ok := tree.(*members)
	if !ok {
		fmt.Fprintln(&out, shown(tree, maxValue))
	} else if err := tableOf(&out, root); err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

// inWrittenOrder reads the next value, objects with their keys in order.
func inWrittenOrder(dec *json.Decoder) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		o := newMembers()
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			value, err := inWrittenOrder(dec)
			if err != nil {
				return nil, err
			}
			o.set(key.(string), value) // an object's keys are strings
		}
		_, err := dec.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			value, err := inWrittenOrder(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err := dec.Token()
		return list, err
	}
	return tok, nil
}

// tableOf shows an object: its values and those of objects in it as lines, lists of objects as tables behind them.
func tableOf(w io.Writer, o *members) error {
	lines := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	type list struct {
		name string
		rows []any
	}
	var lists []list
	var walk func(prefix string, o *members)
	walk = func(prefix string, o *members) {
		for _, key := range o.keys {
			name := prefix + governance.Plain(key, 64)
			switch value := o.values[key].(type) {
			case *members:
				if len(value.keys) > 0 {
					walk(name+".", value)
					continue
				}
				fmt.Fprintf(lines, "%s\t-\n", name)
			case []any:
				if slices.ContainsFunc(value, isObject) {
					lists = append(lists, list{name, value})
					continue
				}
				fmt.Fprintf(lines, "%s\t%s\n", name, shown(value, maxValue))
			default:
				fmt.Fprintf(lines, "%s\t%s\n", name, shown(value, maxValue))
			}
		}
	}
	walk("", o)
	if err := lines.Flush(); err != nil {
		return err
	}
	for _, each := range lists {
		fmt.Fprintf(w, "\n%s\n", each.name)
		if err := rowsOf(w, each.rows); err != nil {
			return err
		}
	}
	return nil
}

func isObject(v any) bool {
	_, ok := v.(*members)
	return ok
}

// rowsOf shows a list of objects, one a row; its columns are all their keys.
func rowsOf(w io.Writer, rows []any) error {
	var columns []string
	for _, row := range rows {
		o, ok := row.(*members)
		if !ok {
			continue
		}
		for _, key := range o.keys {
			if !slices.Contains(columns, key) {
				columns = append(columns, key)
			}
		}
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	heads := make([]string, len(columns))
	for i, key := range columns {
		heads[i] = strings.ToUpper(governance.Plain(key, 64))
	}
	fmt.Fprintln(table, strings.Join(heads, "\t"))
	for _, row := range rows {
		o, ok := row.(*members)
		if !ok {
			fmt.Fprintln(table, shown(row, maxCell))
			continue
		}
		cells := make([]string, len(columns))
		for i, key := range columns {
			cells[i] = shown(o.values[key], maxCell)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

// shown is a value as text, safe for a terminal; what is absent or empty is a hyphen.
func shown(v any, limit int) string {
	text := ""
	switch v := v.(type) {
	case nil:
	case string:
		text = v
	case []any:
		parts := make([]string, len(v))
		for i, each := range v {
			parts[i] = shown(each, limit)
		}
		text = strings.Join(parts, ", ")
	default:
		text = compact(v)
	}
	if text == "" {
		return "-"
	}
	return governance.Plain(text, limit)
}
