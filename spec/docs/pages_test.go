package docs_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	pages "powernode/docs"
	"powernode/internal/golden"
	"powernode/schema"
	"powernode/spec/docs"
)

var (
	placeholder = regexp.MustCompile(`<[^<>"]+>`)
	verbNamed   = regexp.MustCompile(`(?:^|[^.\w])((?:system|kubernetes|platform)_[a-z_]*[a-z])\b`) // not a category, which has a dot before it
)

// page is a text for people: the README, or a document.
type page struct{ name, text string }

func everyPage(t *testing.T) []page {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	out := []page{{"README.md", string(readme)}}
	err = fs.WalkDir(pages.Files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(pages.Files, path)
		out = append(out, page{"docs/" + path, string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPagesCallWhatTheContractDeclares(t *testing.T) {
	t.Parallel()
	verbs, calls := contract(t), 0
	for _, p := range everyPage(t) {
		for _, block := range docs.FencedBlocks(p.text) {
			if block.Language != "call" {
				continue
			}
			for line := range strings.SplitSeq(strings.TrimSpace(block.Text), "\n") {
				calls++
				if err := holdCall(verbs, line); err != nil {
					t.Errorf("%s:%d: %s: %v", p.name, block.Line, line, err)
				}
			}
		}
	}
	if calls < 12 {
		t.Errorf("the pages have %d calls in call blocks, want at least 12", calls)
	}
}

func holdCall(verbs map[string]*schema.Verb, line string) error {
	name, raw, _ := strings.Cut(line, " ")
	v := verbs[name]
	if v == nil {
		return errNoVerb(name)
	}
	var arguments docs.Object
	if err := json.Unmarshal([]byte(placeholder.ReplaceAllString(raw, "0197c000-0000-7000-8000-000000000001")), &arguments); err != nil {
		return err
	}
	return validate(v, arguments)
}

type errNoVerb string

func (e errNoVerb) Error() string { return string(e) + " is no verb" }

// A call in a shell block has a verb of the contract, flags of its parameters, and all that it requires.
func TestShellBlocksCallWhatTheContractDeclares(t *testing.T) {
	t.Parallel()
	verbs, calls := contract(t), 0
	for _, p := range everyPage(t) {
		for _, block := range docs.FencedBlocks(p.text) {
			if block.Language != "sh" {
				continue
			}
			found, err := docs.ShellCalls(block.Text)
			if err != nil {
				t.Errorf("%s:%d: %v", p.name, block.Line, err)
			}
			for _, c := range found {
				calls++
				for _, fault := range flagFaults(verbs[c.Verb], c) {
					t.Errorf("%s:%d: %s: %s", p.name, block.Line, c.Verb, fault)
				}
			}
		}
	}
	if calls < 50 {
		t.Errorf("the pages have %d calls in shell blocks, want at least 50", calls)
	}
}

// ofTheCommand are flags of powernode call itself.
var ofTheCommand = []string{"output", "token-file"}

// refusedOnPurpose are flags that the pages give to show the refusal.
var refusedOnPurpose = map[string]string{"system_sdwan_create_network": "cidr_64"}

// filledIn are flags that a script hands on to a call in a function ("$@").
var filledIn = map[string][]string{"system_sdwan_create_firewall_rule": {"name"}}

func flagFaults(v *schema.Verb, c docs.ShellCall) (faults []string) {
	if v == nil {
		return []string{"there is no such verb"}
	}
	for _, f := range c.Flags {
		if !slices.Contains(ofTheCommand, f) && !slices.Contains(v.Parameters(), f) && refusedOnPurpose[c.Verb] != f {
			faults = append(faults, "no parameter is named "+f)
		}
	}
	var input struct {
		Required []string `json:"required"`
	}
	if err := json.Unmarshal(v.Input, &input); err != nil {
		return append(faults, err.Error())
	}
	for _, name := range input.Required {
		if !slices.Contains(c.Flags, name) && !slices.Contains(filledIn[c.Verb], name) {
			faults = append(faults, name+" is missing")
		}
	}
	return faults
}

// A verb that is named in a sentence or called by the command line exists.
func TestPagesNameVerbsThatExist(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	for _, p := range everyPage(t) {
		for _, m := range verbNamed.FindAllStringSubmatch(p.text, -1) {
			if verbs[m[1]] == nil && !parameter(verbs, m[1]) {
				t.Errorf("%s names %s, which is no verb", p.name, m[1])
			}
		}
	}
}

// parameter says whether a word is a parameter or a key of an answer that looks like a verb.
func parameter(verbs map[string]*schema.Verb, name string) bool {
	for _, v := range verbs {
		if slices.Contains(v.Parameters(), name) || slices.Contains(v.OutputShape().Names, name) {
			return true
		}
	}
	return false
}

// No verb call stands where nothing checks it: in a block of another kind than `call`, but for the command line's.
func TestCallsStandInCallBlocks(t *testing.T) {
	t.Parallel()
	call := regexp.MustCompile(`\b(system|kubernetes|platform)_[a-z_]+ *\(?\{`)
	for _, p := range everyPage(t) {
		rest := p.text
		for _, block := range docs.FencedBlocks(p.text) {
			if block.Language == "call" {
				rest = strings.Replace(rest, block.Text, "", 1)
			}
		}
		if found := call.FindString(rest); found != "" {
			t.Errorf("%s has the call %q outside of a call block", p.name, found)
		}
	}
}

func TestReadmeConfigurationsAreJSON(t *testing.T) {
	t.Parallel()
	n := 0
	for _, p := range everyPage(t) {
		for _, block := range docs.FencedBlocks(p.text) {
			if block.Language != "json" {
				continue
			}
			n++
			if !json.Valid([]byte(block.Text)) {
				t.Errorf("%s:%d: this is no JSON: %s", p.name, block.Line, block.Text)
			}
		}
	}
	if n < 2 {
		t.Errorf("the pages have %d configurations in JSON, want at least those of Claude Desktop and VS Code", n)
	}
}

func TestVerbReferenceIsMadeFromTheContract(t *testing.T) {
	t.Parallel()
	verbs, err := schema.Verbs()
	if err != nil {
		t.Fatal(err)
	}
	reference, err := docs.Reference(verbs)
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "../../../docs/reference/verbs.md", reference)
}
