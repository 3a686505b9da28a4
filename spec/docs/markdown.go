package docs

import (
	"fmt"
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Fenced is a fenced block of a Markdown text.
type Fenced struct {
	Language string // as it stands after the fence
	Line     int    // of its first line
	Text     string
}

var fence = regexp.MustCompile("(?ms)^```(\\S*)\n(.*?)^```$")

// FencedBlocks are the fenced blocks of a Markdown text, in order. Languages that mean something to the tests: `call` has
// one call a line, the verb and its arguments; `sh` is run.
func FencedBlocks(markdown string) []Fenced {
	var out []Fenced
	for _, m := range fence.FindAllStringSubmatchIndex(markdown, -1) {
		out = append(out, Fenced{Language: markdown[m[2]:m[3]], Text: markdown[m[4]:m[5]], Line: strings.Count(markdown[:m[4]], "\n") + 1})
	}
	return out
}

// ShellCall is a call of powernode in a shell script: the verb, and the flags that it is given.
type ShellCall struct {
	Verb  string
	Flags []string
}

// ShellCalls are the calls of a shell script whose verb is written out.
func ShellCalls(script string) ([]ShellCall, error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, fmt.Errorf("read shell script: %w", err)
	}
	var out []ShellCall
	syntax.Walk(file, func(n syntax.Node) bool {
		if command, ok := n.(*syntax.CallExpr); ok {
			if call, ok := shellCall(command); ok {
				out = append(out, call)
			}
		}
		return true
	})
	return out, nil
}

func shellCall(command *syntax.CallExpr) (ShellCall, bool) {
	if len(command.Args) < 3 || command.Args[0].Lit() != "powernode" || command.Args[1].Lit() != "call" || command.Args[2].Lit() == "" {
		return ShellCall{}, false
	}
	call := ShellCall{Verb: command.Args[2].Lit()}
	for _, word := range command.Args[3:] {
		if name, isFlag := strings.CutPrefix(word.Lit(), "--"); isFlag {
			call.Flags = append(call.Flags, name)
		}
	}
	return call, true
}
