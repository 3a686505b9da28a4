package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"

	"powernode/platform/governance"
)

const (
	// maxCell is how many characters of a value a list shows, maxValue how many stand alone.
	maxCell  = 48
	maxValue = 400
)

// printTable shows a result to a person: single values first, then each list as a table that is at most so wide; 0: as
// wide as it is. It is for reading; scripts take JSON.
func printTable(w io.Writer, result json.RawMessage, width int) error {
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
	} else if err := tableOf(&out, root, width); err != nil {
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
func tableOf(w io.Writer, o *members, width int) error {
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
		if err := rowsOf(w, each.rows, width); err != nil {
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
func rowsOf(w io.Writer, rows []any, width int) error {
	t := gridOf(rows)
	left := t.fit(width)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, line := range t.lines {
		cells := make([]string, 0, len(line))
		for i, cell := range line {
			if t.widths[i] > 0 {
				cells = append(cells, governance.Plain(cell, t.widths[i]))
			}
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(left) > 0 {
		fmt.Fprintf(w, "(no room for %s: --output json has all)\n", strings.Join(left, ", "))
	}
	return nil
}

// grid is a table's cells, the heads among them, and how wide each column is; one of width 0 is not shown.
type grid struct {
	lines  [][]string
	widths []int
	whole  []bool // columns of ids: what is cut there is worth nothing
}

func gridOf(rows []any) grid {
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
	t := grid{widths: make([]int, len(columns)), whole: make([]bool, len(columns))}
	heads := make([]string, len(columns))
	for i, key := range columns {
		heads[i] = strings.ToUpper(governance.Plain(key, 64))
		t.whole[i] = key == "id" || strings.HasSuffix(key, "_id")
	}
	t.lines = append(t.lines, heads)
	for _, row := range rows {
		line := make([]string, len(columns))
		o, ok := row.(*members)
		if !ok {
			line[0] = summed(row) // of a list that mixes objects with others
			t.lines = append(t.lines, line)
			continue
		}
		for i, key := range columns {
			line[i] = summed(o.values[key])
		}
		t.lines = append(t.lines, line)
	}
	for _, line := range t.lines {
		for i, cell := range line {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	return t
}

// leastCell is how many characters a column keeps however narrow the terminal is.
const leastCell = 8

// fit makes the widest columns narrower until the table is at most so wide, ids apart; 0 is as wide as it is. It answers the
// columns at the end that have no room all the same.
func (t grid) fit(width int) (left []string) {
	if width == 0 {
		return nil
	}
	const gap = 2
	for {
		total, widest := -gap, -1
		for i, n := range t.widths {
			if n > 0 {
				total += n + gap
			}
			if !t.whole[i] && n > leastCell && (widest < 0 || n > t.widths[widest]) {
				widest = i
			}
		}
		if total <= width {
			return left
		}
		if widest >= 0 {
			t.widths[widest]--
			continue
		}
		last := t.last()
		if last <= 0 { // one is always shown
			return left
		}
		left, t.widths[last] = append([]string{t.lines[0][last]}, left...), 0
	}
}

// last is the last column that is shown.
func (t grid) last() int {
	for i := len(t.widths) - 1; i > 0; i-- {
		if t.widths[i] > 0 {
			return i
		}
	}
	return 0
}

// summed is a value as a cell: an object by its plain values, and of what is deeper that it is there.
func summed(v any) string {
	switch v := v.(type) {
	case *members:
		parts := make([]string, len(v.keys))
		for i, key := range v.keys {
			parts[i] = key + "=" + within(v.values[key])
		}
		return shown(strings.Join(parts, " "), maxCell)
	case []any:
		if slices.ContainsFunc(v, isObject) {
			return fmt.Sprintf("%d entries", len(v))
		}
	}
	return shown(v, maxCell)
}

func within(v any) string {
	switch v := v.(type) {
	case *members:
		return "{…}"
	case []any:
		return fmt.Sprintf("[%d]", len(v))
	}
	return shown(v, maxCell)
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

// widthOf is how many characters fit on a line of where is written; 0: it is no terminal.
func widthOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return max(width, 0)
}
