package docs_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"powernode/spec/docs"
)

// A block that is fenced as `call` has one call a line: the verb, and its arguments.
var (
	fenced      = regexp.MustCompile("(?ms)^```(\\S*)\n(.*?)^```$")
	placeholder = regexp.MustCompile(`<[^<>"]+>`)
)

func TestReadmeCallsFitTheContract(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	lines := readmeCalls(t)
	if len(lines) < 10 {
		t.Errorf("README has %d calls, want at least 10", len(lines))
	}
	for _, line := range lines {
		name, raw, _ := strings.Cut(line, " ")
		v := verbs[name]
		if v == nil {
			t.Errorf("README calls %s, which is no verb", name)
			continue
		}
		var arguments docs.Object
		if err := json.Unmarshal([]byte(placeholder.ReplaceAllString(raw, "0197c000-0000-7000-8000-000000000001")), &arguments); err != nil {
			t.Errorf("README: %s: %v", line, err)
			continue
		}
		if err := validate(v, arguments); err != nil {
			t.Errorf("README: %s: %v", line, err)
		}
	}
}

// A verb that is named in a sentence or called by the command line exists.
func TestReadmeNamesVerbsThatExist(t *testing.T) {
	t.Parallel()
	verbs := contract(t)
	for _, name := range regexp.MustCompile(`\b(system|kubernetes|platform)_[a-z_]+\b`).FindAllString(readme(t), -1) {
		if verbs[name] == nil {
			t.Errorf("README names %s, which is no verb", name)
		}
	}
}

// No verb call stands where nothing checks it: in a block of another kind than `call`, but for the command line's.
func TestReadmeCallsStandInCallBlocks(t *testing.T) {
	t.Parallel()
	call := regexp.MustCompile(`\b(system|kubernetes|platform)_[a-z_]+ *\(?\{`)
	rest := fenced.ReplaceAllStringFunc(readme(t), func(block string) string {
		if strings.HasPrefix(block, "```call\n") {
			return ""
		}
		return block
	})
	if found := call.FindString(rest); found != "" {
		t.Errorf("README has the call %q outside of a call block", found)
	}
}

func TestReadmeConfigurationsAreJSON(t *testing.T) {
	t.Parallel()
	n := 0
	for _, m := range fenced.FindAllStringSubmatch(readme(t), -1) {
		if m[1] != "json" {
			continue
		}
		n++
		if !json.Valid([]byte(m[2])) {
			t.Errorf("README: this is no JSON: %s", m[2])
		}
	}
	if n != 2 {
		t.Errorf("README has %d configurations in JSON, want those of Claude Desktop and VS Code", n)
	}
}

func readmeCalls(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, m := range fenced.FindAllStringSubmatch(readme(t), -1) {
		if m[1] == "call" {
			out = append(out, strings.Split(strings.TrimSpace(m[2]), "\n")...)
		}
	}
	return out
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
