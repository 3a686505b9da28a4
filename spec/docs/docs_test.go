package docs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/spec/docs"
)

// The numbers of the documents: who adds or drops a call has read the document again.
func TestEveryCallOfTheDocumentsIsThere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		document string
		want     map[docs.Place]int
	}{
		{"tutorial", map[docs.Place]int{docs.Block: 28, docs.Table: 4, docs.Prose: 7, docs.Shell: 5}},
		{"runbook", map[docs.Place]int{docs.Block: 29, docs.Table: 1, docs.Prose: 1, docs.Comment: 1}},
	} {
		t.Run(tt.document, func(t *testing.T) {
			t.Parallel()
			got := map[docs.Place]int{}
			for _, c := range calls(load(t, tt.document)) {
				got[c.Place]++
			}
			delete(got, docs.Ours)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("calls by place (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryCallFitsTheContract(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	for _, name := range []string{"tutorial", "runbook"} {
		for i, c := range calls(load(t, name)) {
			if c.Verb == "" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d_%s", name, i, c.Verb), func(t *testing.T) {
				t.Parallel()
				v := verbs[c.Verb]
				if v == nil {
					t.Fatalf("the contract has no verb %s", c.Verb)
				}
				err := validate(v, c.Given())
				if c.Refusal != nil && c.Refusal.Code == string(schema.InvalidArguments) {
					wantRefusal(t, err, *c.Refusal)
					return
				}
				if err != nil {
					t.Errorf("the arguments are refused: %v", err)
				}
			})
		}
	}
}

func TestEveryReadFitsTheContract(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	for _, name := range []string{"tutorial", "runbook"} {
		for _, c := range calls(load(t, name)) {
			for _, r := range append(slices.Clone(c.Waiting), c.Reads...) {
				v := verbs[r.Verb]
				if v == nil || !v.Annotations.ReadOnly {
					t.Errorf("%s: a read of %s by %s, which is no reading verb", name, c.Verb, r.Verb)
					continue
				}
				if err := validate(v, r.Arguments); err != nil {
					t.Errorf("%s: a read of %s by %s: %v", name, c.Verb, r.Verb, err)
				}
			}
		}
	}
}

// What a hint of a refusal names exists.
func TestEveryHintNamesAVerb(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	for _, name := range []string{"tutorial", "runbook"} {
		for _, c := range calls(load(t, name)) {
			if c.Refusal != nil && c.Refusal.Hint != "" && verbs[c.Refusal.Hint] == nil {
				t.Errorf("%s: the refusal of %s names %s, which is no verb", name, c.Verb, c.Refusal.Hint)
			}
		}
	}
}

func TestEveryCallSaysWhatShowsIt(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	for _, name := range []string{"tutorial", "runbook"} {
		for i, c := range calls(load(t, name)) {
			for _, fault := range faults(verbs, c) {
				t.Errorf("%s, call %d, %s: %s", name, i, c.Verb, fault)
			}
		}
	}
}

// faults are what a reader of the data would stumble over.
func faults(verbs map[string]*schema.Verb, c docs.Call) []string {
	var out []string
	say := func(wrong bool, what string) {
		if wrong {
			out = append(out, what)
		}
	}
	kinds := 0
	for _, set := range []bool{c.Verb != "", len(c.Powernode) > 0, c.Policy != nil, c.Exec != nil, c.Write != nil, c.Install != nil} {
		if set {
			kinds++
		}
	}
	say(kinds != 1, "is not exactly one of verb, powernode, policy, exec, write and install")
	say(c.Withdrawn && c.Note == "", "is withdrawn and has no note")
	say((c.Outcome == docs.Refused) != (c.Refusal != nil), "a refusal and the outcome refused go together")
	say((c.Outcome == docs.Parks) != (c.Category != ""), "a category and the outcome parks go together")
	say(len(c.Waiting) > 0 && c.Outcome != docs.Parks, "waits for nothing")
	say(c.Outcome == docs.Parks && c.Place != docs.Ours && len(c.Waiting) == 0, "parks, and no read shows that nothing is done before the approval")
	say(len(c.Added) > 0 && !c.Open && c.Place == docs.Block, "has added keys, but the example is not open")
	v := verbs[c.Verb]
	if v == nil {
		return out
	}
	succeeds := c.Outcome == docs.Succeeds || c.Outcome == docs.Parks
	say(!succeeds && c.Outcome != docs.Refused, "has no outcome")
	say(c.Outcome == docs.Parks && v.Category != c.Category, "parks under a category that is not the verb's")
	pinned := c.Place != docs.Ours && succeeds
	say(pinned && !v.Annotations.ReadOnly && len(c.Reads) == 0, "changes something that no read shows")
	say(pinned && v.Annotations.ReadOnly && empty(c.Answer), "reads something that nothing checks")
	return out
}

func TestEveryReferenceIsSavedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tutorial", "runbook"} {
		saved := map[string]bool{}
		use := func(what string, v any) {
			for _, ref := range docs.Names(v) {
				if !saved[ref] {
					t.Errorf("%s: %s uses <%s> before it is saved", name, what, ref)
				}
			}
		}
		keep := func(save map[string]string) {
			for ref := range save {
				if saved[ref] {
					t.Errorf("%s: <%s> is saved twice", name, ref)
				}
				saved[ref] = true
			}
		}
		for _, s := range load(t, name).InOrder() {
			for _, c := range s.Calls {
				use(c.Verb, []any{c.Given(), c.Powernode, c.Exec, c.Write, c.Waiting})
				keep(c.Save)
				use(c.Verb, c.Answer)
				for _, r := range c.Reads {
					use(r.Verb, []any{r.Arguments, r.Check})
					keep(r.Save)
				}
			}
		}
	}
}

func TestEveryStepIsRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tutorial", "runbook"} {
		d := load(t, name)
		if got, want := len(d.InOrder()), len(d.Steps); got != want {
			t.Errorf("%s: %d steps are run, want %d", name, got, want)
		}
	}
}

func TestMissingNamesWhatAnAnswerLacks(t *testing.T) {
	t.Parallel()
	answer := docs.Object{"nodes": []any{docs.Object{"name": "a", "role": "server", "prefix": "fd00::100/128"}}, "count": 1.0}
	refs := docs.References{"name": "a"}
	for _, tt := range []struct {
		name  string
		check docs.Check
		want  string
	}{
		{"an equal value", docs.Check{Want: docs.Object{"nodes[name=<name>].role": "server", "count": 1, "nodes[0].prefix|address": "fd00::100"}}, ""},
		{"another value", docs.Check{Want: docs.Object{"nodes[0].role": "agent"}}, `nodes[0].role is "server", want "agent"`},
		{"a value that is not there", docs.Check{Present: []string{"nodes[name=b]"}}, "nodes[name=b] is not there"},
		{"a value that is there", docs.Check{Absent: []string{"nodes[0].name"}}, `nodes[0].name is there: "a"`},
		{"a count", docs.Check{Count: map[string]int{"nodes": 2}}, "nodes has 1 entries, want 2"},
		{"the same value", docs.Check{Differ: docs.Object{"nodes[0].name": "<name>"}}, `nodes[0].name is "a", want another value`},
		{"a text anywhere", docs.Check{Nowhere: []string{"fd00::100"}}, "fd00::100 stands in the answer"},
		{"an address outside", docs.Check{WithinPrefix: map[string]string{"nodes[0].prefix|address": "fd01::/64"}}, "nodes[0].prefix|address is fd00::100, want an address in fd01::/64"},
		{"a text within a text", docs.Check{Contains: map[string]string{"nodes[0].role": "client"}}, `nodes[0].role is "server", want "client" in it`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := refs.Missing(answer, tt.check)
			if err != nil {
				t.Fatal(err)
			}
			if got, _, _ = strings.Cut(got, "; the answer"); got != tt.want {
				t.Errorf("missing is %q, want %q", got, tt.want)
			}
		})
	}
}

func load(t *testing.T, name string) docs.Document {
	t.Helper()
	d, err := docs.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func calls(d docs.Document) []docs.Call {
	var out []docs.Call
	for _, s := range d.Steps {
		out = append(out, s.Calls...)
	}
	return out
}

func contract(t *testing.T) map[string]*schema.Verb {
	t.Helper()
	verbs, err := schema.Verbs()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*schema.Verb{}
	for _, v := range verbs {
		out[v.Name] = v
	}
	return out
}

// validate holds arguments against a schema, with examples for references.
func validate(v *schema.Verb, arguments docs.Object) error {
	refs := docs.References{}
	for _, name := range docs.Names(arguments) {
		refs[name] = "0197c000-0000-7000-8000-000000000001"
	}
	refs["vip_b"] = "fd00:abcd:2::100"
	filled, err := refs.Fill(arguments)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(filled)
	if err != nil {
		return err
	}
	_, err = v.Validate(raw)
	return err
}

func wantRefusal(t *testing.T, err error, want docs.Refusal) {
	t.Helper()
	var got *schema.Error
	if !errors.As(err, &got) {
		t.Fatalf("err is %v, want a refusal", err)
	}
	if string(got.Code) != want.Code || !strings.HasPrefix(got.Message, want.Text) {
		t.Errorf("refusal is %s: %q, want %s: %q", got.Code, got.Message, want.Code, want.Text)
	}
	if want.Hint != "" && (got.Hint == nil || got.Hint.Verb != want.Hint) {
		t.Errorf("hint is %+v, want the verb %s", got.Hint, want.Hint)
	}
}

func empty(c docs.Check) bool {
	return len(c.Want)+len(c.Contains)+len(c.Differ)+len(c.WithinPrefix)+len(c.Present)+len(c.Absent)+len(c.Count)+len(c.Nowhere) == 0
}
