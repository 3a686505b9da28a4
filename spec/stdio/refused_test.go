package stdio_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3" // the driver

	"powernode/spec/rig"
)

// Whatever is wrong with a call, it is refused with its place, nothing is changed but the record of calls, and the server
// goes on.
func TestTwoThousandWrongCallsAreRefused(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	calls := newGenerator(t, 1).calls(2000)
	if again := newGenerator(t, 1).calls(2000); !cmp.Equal(calls, again, cmp.AllowUnexported(wrong{})) {
		t.Fatal("the same seed makes other calls")
	}
	converse(ctx, t, i, create(0, "before"))
	before := contents(ctx, t, i)

	var input strings.Builder
	input.WriteString(opening)
	for _, w := range calls {
		input.WriteString(w.line + "\n")
	}
	answers := map[string]rig.Answer{}
	nameless := 0
	for _, a := range converse(ctx, t, i, input.String()) {
		switch id := string(a.ID); {
		case id == "" || id == "null":
			if a.Error == nil {
				t.Errorf("no protocol error: %.300s", a.Line)
			}
			nameless++
		default:
			answers[id] = a
		}
	}
	kinds, verbs := map[string]int{}, map[string]bool{}
	wantEvents := map[string]int{"ok": 1}
	for _, w := range calls {
		kinds[w.kind]++
		verbs[w.verb] = true
		if w.id == "null" {
			nameless--
			continue
		}
		if !w.protocol {
			wantEvents["refused"]++ // it was a call, also where its envelope is wrong
		}
		if fault := w.unlike(answers[w.id]); fault != "" {
			t.Errorf("%s, %s: %s\n%.400s\n%.600s", w.verb, w.kind, fault, w.line, answers[w.id].Line)
		}
	}
	if nameless != 0 {
		t.Errorf("%d more answers without an id than messages whose id can't be read", nameless)
	}
	if diff := cmp.Diff(before, contents(ctx, t, i)); diff != "" {
		t.Errorf("the store (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(wantEvents, events(ctx, t, i)); diff != "" {
		t.Errorf("records of calls by status (-want +got):\n%s", diff)
	}
	for _, m := range mutations {
		if kinds[m.kind] == 0 {
			t.Errorf("no call with %s", m.kind)
		}
	}
	for _, e := range envelopes {
		if kinds[e.kind] == 0 {
			t.Errorf("no call with %s", e.kind)
		}
	}
	t.Logf("%d kinds, %d verbs, %v", len(kinds), len(verbs), wantEvents)
	if all := newGenerator(t, 1).verbs; len(verbs) != len(all) {
		t.Errorf("%d verbs of %d were called", len(verbs), len(all))
	}
	if right := converse(ctx, t, i, create(1, "after")); len(right) != 1 || right[0].Result == nil || right[0].Result.IsError {
		t.Errorf("a right call after them: %s", lines(right))
	}
	if diff := cmp.Diff([]string{"after", "before"}, networks(ctx, t, i)); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
}

// unlike says how an answer differs from what a wrong message must get; "" where it does not.
func (w wrong) unlike(a rig.Answer) string {
	if a.Line == nil {
		return "no answer"
	}
	if w.protocol {
		if a.Error == nil || a.Error.Code >= 0 || a.Error.Message == "" {
			return "no protocol error"
		}
		return ""
	}
	got, err := a.Refusal()
	switch {
	case err != nil:
		return err.Error()
	case got == nil:
		return "it was taken"
	case got.Code != "invalid_arguments":
		return "refused as " + got.Code
	case len(got.Message) > 4000 || got.Message == "":
		return fmt.Sprintf("its message has %d bytes", len(got.Message))
	}
	if _, ok := got.Details["pointer"].(string); !ok {
		return "no pointer"
	}
	for _, v := range rig.List(got.Details["violations"]) {
		if v["pointer"] == w.pointer {
			return ""
		}
	}
	return fmt.Sprintf("no violation is at %q", w.pointer)
}

// contents are a sum of each table of the store, but for the record of calls itself.
func contents(ctx context.Context, t *testing.T, i *rig.Installation) map[string]string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(i.Dir, "store.db")+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() // it was read
	out := map[string]string{}
	for _, table := range column(ctx, t, db, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'execution_events' ORDER BY name`) {
		names := column(ctx, t, db, `SELECT 'quote("' || name || '")' FROM pragma_table_info('`+table+`') ORDER BY cid`)
		rows := column(ctx, t, db, `SELECT `+strings.Join(names, ` || ',' || `)+` AS row FROM "`+table+`" ORDER BY row`)
		sum := sha256.Sum256([]byte(strings.Join(rows, "\n")))
		out[table] = fmt.Sprintf("%d rows, %s", len(rows), hex.EncodeToString(sum[:8]))
	}
	if len(out) < 20 {
		t.Fatalf("the store has %d tables alone", len(out))
	}
	return out
}

// events counts the records of calls by their status.
func events(ctx context.Context, t *testing.T, i *rig.Installation) map[string]int {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(i.Dir, "store.db")+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() // it was read
	out := map[string]int{}
	for _, status := range column(ctx, t, db, `SELECT status FROM execution_events`) {
		out[status]++
	}
	return out
}

func column(ctx context.Context, t *testing.T, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close() // its error is asked below
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
