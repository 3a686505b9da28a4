package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/schema"
)

func toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "List and explain the verbs",
	}
	var toolset string
	list := &cobra.Command{
		Use:   "list",
		Short: "List the verbs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verbs, err := schema.Verbs()
			if err != nil {
				return err
			}
			return listVerbs(cmd.OutOrStdout(), verbs, toolset)
		},
	}
	list.Flags().StringVar(&toolset, "toolset", "", "only verbs of this toolset")
	var asJSON bool
	explain := &cobra.Command{
		Use:   "explain VERB",
		Short: "Explain a verb: what it is for, its parameters, what it answers, what decides it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := verbNamed(args[0])
			if v == nil {
				return unknownVerbNamed(args[0])
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), v)
			}
			return explainVerb(cmd.OutOrStdout(), v)
		},
	}
	explain.Flags().BoolVar(&asJSON, "json", false, "the declaration as JSON")
	cmd.AddCommand(list, explain)
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
		return fmt.Errorf("unknown verb %s: did you mean %s?", governance.Quote(name), near)
	}
	return fmt.Errorf("unknown verb %s", governance.Quote(name))
}

func listVerbs(w io.Writer, verbs []*schema.Verb, toolset string) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "VERB\tTOOLSET\tDECIDED BY\tWHAT")
	found := false
	for _, v := range verbs {
		if toolset != "" && v.Toolset != toolset {
			continue
		}
		found = true
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.Name, v.Toolset, decidedBy(v), v.Title)
	}
	if !found {
		return fmt.Errorf("no verb of toolset %s", governance.Quote(toolset))
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
	if err := explainProperties(&b, v.Input); err != nil {
		return fmt.Errorf("read the input of %s: %w", v.Name, err)
	}
	fmt.Fprintf(&b, "Answers: %s\n", strings.Join(v.OutputShape().Names, ", "))
	fmt.Fprintf(&b, "Needs:   %s\n", v.Permission)
	if v.Gated() {
		fmt.Fprintf(&b, "Decided: %s, by default %s\n", v.Category, governance.Default(v.Category))
	}
	for _, category := range v.Escalates {
		fmt.Fprintf(&b, "         %s, by default %s, for some arguments\n", category, governance.Default(category))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func explainProperties(b *strings.Builder, input json.RawMessage) error {
	var in struct {
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return err
	}
	dec := json.NewDecoder(strings.NewReader(string(in.Properties)))
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
		var p struct {
			Type        string          `json:"type"`
			Description string          `json:"description"`
			Default     json.RawMessage `json:"default"`
			Enum        []string        `json:"enum"`
		}
		if err := dec.Decode(&p); err != nil {
			return err
		}
		fmt.Fprintf(b, "  %s (%s%s) %s\n", name, p.Type, remarks(fmt.Sprint(name), in.Required, p.Default, p.Enum), p.Description)
	}
	return nil
}

func remarks(name string, required []string, byDefault json.RawMessage, enum []string) string {
	out := ""
	for _, r := range required {
		if r == name {
			out += ", required"
		}
	}
	if len(byDefault) > 0 {
		out += ", default " + string(byDefault)
	}
	if len(enum) > 0 {
		out += ": " + strings.Join(enum, " | ")
	}
	return out
}
