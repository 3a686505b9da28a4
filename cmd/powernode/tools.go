package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
)

func toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "List, explain and search the verbs",
		Long:  "List, explain and search the verbs: what an assistant sees as tools, and powernode call calls. It needs no control plane.",
	}
	cmd.AddCommand(toolsListCommand(), toolsExplainCommand(), toolsSearchCommand())
	return cmd
}

// outputFlag adds --output to a command that shows a table to people and JSON to programs.
func outputFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("output", "table", "json or table")
}

// asJSON reads --output.
func asJSON(output string) (bool, error) {
	if output != "json" && output != "table" {
		return false, usagef("--output takes json or table")
	}
	return output == "json", nil
}

func toolsListCommand() *cobra.Command {
	var toolset string
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List the verbs",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	output := outputFlag(cmd)
	cmd.Flags().StringVar(&toolset, "toolset", "", "only verbs of this toolset")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		verbs, err := schema.Verbs()
		if err != nil {
			return err
		}
		if toolset != "" {
			verbs = slices.DeleteFunc(verbs, func(v *schema.Verb) bool { return v.Toolset != toolset })
		}
		if len(verbs) == 0 {
			return usagef("no verb of toolset %s", governance.Quote(toolset))
		}
		return showVerbs(cmd.OutOrStdout(), verbs, *output)
	}
	return cmd
}

func toolsExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain VERB",
		Short: "Explain a verb: what it is for, its parameters, what it answers, what decides it",
		Args:  cobra.ExactArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return verbNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v := verbNamed(args[0])
		if v == nil {
			return unknownVerbNamed(args[0])
		}
		encode, err := asJSON(*output)
		if err != nil {
			return err
		}
		if encode {
			return printValue(cmd.OutOrStdout(), v)
		}
		return explainVerb(cmd.OutOrStdout(), v)
	}
	return cmd
}

// foundHere is how many verbs a search shows.
const foundHere = 12

func toolsSearchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "search WORDS...",
		Short:   "Find the verbs for a purpose, best first, as platform_search_verbs does",
		Example: "  powernode tools search move a worker to another cluster",
		Args:    cobra.MinimumNArgs(1),
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p := &tools.Platform{}
		if err := p.Register(); err != nil {
			return err
		}
		anyone := tools.Caller{Kind: governance.KindPerson, Role: governance.RoleAdmin} // a search tells what there is, and runs nothing
		verbs := []*schema.Verb{}
		for _, d := range p.Search(anyone, strings.Join(args, " "), foundHere) {
			verbs = append(verbs, d.Contract())
		}
		return showVerbs(cmd.OutOrStdout(), verbs, *output)
	}
	return cmd
}

func unknownVerbNamed(name string) error {
	verbs, err := schema.Verbs()
	if err != nil {
		return err
	}
	names := make([]string, len(verbs))
	for i, v := range verbs {
		names[i] = v.Name
	}
	if near := schema.Nearest(strings.TrimPrefix(name, "platform."), names); near != "" {
		return schema.Errorf(schema.NotFound, "unknown verb %s: did you mean %s?", governance.Quote(name), near)
	}
	return schema.Errorf(schema.NotFound, "unknown verb %s: powernode tools search finds verbs", governance.Quote(name))
}

// verbSummary is a verb in a list.
type verbSummary struct {
	Name           string             `json:"name"`
	Title          string             `json:"title"`
	Toolset        string             `json:"toolset"`
	Default        bool               `json:"default"`
	Permission     string             `json:"permission"`
	ActionCategory *string            `json:"action_category"`
	DefaultVerdict *string            `json:"default_verdict"`
	Annotations    schema.Annotations `json:"annotations"`
}

func showVerbs(w io.Writer, verbs []*schema.Verb, output string) error {
	encode, err := asJSON(output)
	if err != nil {
		return err
	}
	if !encode {
		return listVerbs(w, verbs)
	}
	list := make([]verbSummary, len(verbs))
	for i, v := range verbs {
		list[i] = verbSummary{Name: v.Name, Title: v.Title, Toolset: v.Toolset, Default: v.Default, Permission: v.Permission,
			Annotations: v.Annotations}
		if v.Gated() {
			verdict := decidedBy(v)
			list[i].ActionCategory, list[i].DefaultVerdict = &v.Category, &verdict
		}
	}
	return printValue(w, map[string]any{"verbs": list, "count": len(list)})
}

func listVerbs(w io.Writer, verbs []*schema.Verb) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "VERB\tTOOLSET\tDECIDED BY\tWHAT")
	for _, v := range verbs {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.Name, v.Toolset, decidedBy(v), v.Title)
	}
	return table.Flush()
}

func decidedBy(v *schema.Verb) string {
	if !v.Gated() {
		return "-"
	}
	return string(governance.Default(v.Category))
}

func explainVerb(w io.Writer, v *schema.Verb) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n%s\n\nParameters:\n", v.Name, v.Title, v.Description)
	if err := explainProperties(&b, "", v.Input); err != nil {
		return fmt.Errorf("read the input of %s: %w", v.Name, err)
	}
	fmt.Fprintf(&b, "Answers: %s\n", strings.Join(v.OutputShape().Names, ", "))
	fmt.Fprintf(&b, "Needs:   %s\n", v.Permission)
	if v.Gated() {
		fmt.Fprintf(&b, "Decided: %s, by default %s\n", v.Category, governance.Default(v.Category))
	}
	for _, category := range v.Escalates {
		when := "for some arguments"
		if governance.OfThePlatform(category) {
			when = "where the platform itself calls it, as a remedy"
		}
		fmt.Fprintf(&b, "         %s, by default %s, %s\n", category, governance.Default(category), when)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// explainProperties lists an object's properties in order, those of objects in it behind them, named as flags are.
func explainProperties(b *strings.Builder, prefix string, input json.RawMessage) error {
	var in struct {
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return err
	}
	if len(in.Properties) == 0 {
		return nil // any key
	}
	dec := json.NewDecoder(bytes.NewReader(in.Properties))
	if _, err := dec.Token(); err != nil {
		return errors.Join(errors.New("no properties"), err)
	}
	if !dec.More() {
		b.WriteString("  none\n")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if err := explainProperty(b, prefix+fmt.Sprint(name), slices.Contains(in.Required, fmt.Sprint(name)), raw); err != nil {
			return err
		}
	}
	return nil
}

// property is what is told of one.
type property struct {
	Type        string          `json:"type"`
	Description string          `json:"description"`
	Default     json.RawMessage `json:"default"`
	Enum        []string        `json:"enum"`
	Items       json.RawMessage `json:"items"`
	NullClears  bool            `json:"x-null-clears"`
}

func explainProperty(b *strings.Builder, name string, required bool, raw json.RawMessage) error {
	var p property
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	kind, inside, under := p.Type, raw, name+"."
	if len(p.Items) > 0 {
		var item property
		if err := json.Unmarshal(p.Items, &item); err != nil {
			return err
		}
		kind, inside, under, p.Enum, p.Type = kind+" of "+item.Type, p.Items, name+"[].", item.Enum, item.Type
	}
	fmt.Fprintf(b, "  %s (%s%s) %s\n", name, kind, p.remarks(required), p.Description)
	if p.Type != "object" {
		return nil
	}
	return explainProperties(b, under, inside)
}

func (p property) remarks(required bool) string {
	out := ""
	if required {
		out += ", required"
	}
	if len(p.Default) > 0 {
		out += ", default " + string(p.Default)
	}
	if p.NullClears {
		out += ", null clears"
	}
	if len(p.Enum) > 0 {
		out += ": " + strings.Join(p.Enum, " | ")
	}
	return out
}
