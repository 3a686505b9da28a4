package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"powernode/schema"
)

// pathFlags take a path; no other flag or argument may offer one.
var pathFlags = []string{stateDirFlag, tokenFileFlag, "tls-cert", "tls-key", "out", "json"}

func TestEveryParameterOfEveryVerbOffersWhatItCanBe(t *testing.T) {
	t.Parallel()
	verbs, err := schema.Verbs()
	if err != nil {
		t.Fatal(err)
	}
	call := callCommand()
	call.SetContext(t.Context())
	call.Flags().String(stateDirFlag, t.TempDir(), "") // nothing runs there
	for _, v := range verbs {
		for _, name := range append(flagNames("", v.InputShape()), ownFlags...) {
			offered, directive := completeCall(call, []string{v.Name, "--" + name}, "")
			_, p := declaredAt(v.InputShape(), name)
			if p != nil && p.Type == "array" {
				p = p.Items
			}
			want := slices.Clone(offered)
			switch {
			case name == "output":
				want = []cobra.Completion{"json", "table"}
			case p != nil && p.Type == "boolean":
				want = []cobra.Completion{"true", "false"}
			case p != nil && len(p.Enum) > 0:
				want = p.Enum
			case name == "verb" || name == "tool_name":
				want = verbNames()
			}
			if diff := cmp.Diff(want, offered); diff != "" {
				t.Errorf("%s --%s (-want +got):\n%s", v.Name, name, diff)
			}
			if files := directive&cobra.ShellCompDirectiveNoFileComp == 0; files && !slices.Contains(pathFlags, name) {
				t.Errorf("%s --%s offers files", v.Name, name)
			}
		}
	}
}

func TestEveryFlagAndArgumentOfEveryCommandOffersWhatItCanBe(t *testing.T) {
	t.Parallel()
	walked := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if strings.Contains(cmd.CommandPath(), " completion") || strings.Contains(cmd.CommandPath(), " help") {
			return
		}
		cmd.SetContext(t.Context())
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			walked++
			complete, there := cmd.GetFlagCompletionFunc(f.Name)
			if !there {
				t.Errorf("%s --%s is not completed: files are offered", cmd.CommandPath(), f.Name)
				return
			}
			offered, directive := complete(cmd, nil, "")
			if files := directive&cobra.ShellCompDirectiveNoFileComp == 0; files != slices.Contains(pathFlags, f.Name) && f.Value.Type() != "bool" {
				t.Errorf("%s --%s offers files: %t", cmd.CommandPath(), f.Name, files)
			}
			if f.Value.Type() == "bool" && !slices.Equal(offered, []cobra.Completion{"true", "false"}) {
				t.Errorf("%s --%s offers %v", cmd.CommandPath(), f.Name, offered)
			}
			if strings.HasPrefix(f.Name, "toolset") && !slices.Contains(offered, "sdwan") {
				t.Errorf("%s --%s offers %v, and no toolset", cmd.CommandPath(), f.Name, offered)
			}
		})
		if !cmd.Runnable() || cmd.HasSubCommands() {
			return
		}
		if cmd.ValidArgsFunction == nil {
			t.Errorf("%s does not complete its arguments: files are offered", cmd.CommandPath())
			return
		}
		_, directive := cmd.ValidArgsFunction(cmd, nil, "")
		if files := directive&cobra.ShellCompDirectiveNoFileComp == 0; files != (cmd.CommandPath() == "powernode artifact add") {
			t.Errorf("%s offers files as its argument: %t", cmd.CommandPath(), files)
		}
	}
	root := rootCommand()
	walk(root)
	if walked < 40 {
		t.Errorf("only %d flags were walked", walked)
	}
	for name := range argumentValues() {
		if found, _, err := root.Find(strings.Fields(name)[1:]); err != nil || found.CommandPath() != name {
			t.Errorf("%s has values to offer and is no command", name)
		}
	}
}

func TestListsCompleteTheirLastEntry(t *testing.T) {
	t.Parallel()
	got, _ := flagValues()["toolsets"].complete(nil, nil, "fleet,sd")
	if diff := cmp.Diff([]cobra.Completion{"fleet,sdwan"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	verdicts, _ := argumentValues()["powernode policies set"][1].complete(nil, nil, "require")
	if diff := cmp.Diff([]cobra.Completion{"require_approval"}, verdicts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
