package docs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"powernode/platform/governance"
	"powernode/schema"
)

// Reference is the verb reference as Markdown, made from the contract.
func Reference(verbs []*schema.Verb) ([]byte, error) {
	var toolsets []string
	for _, v := range verbs {
		if !slices.Contains(toolsets, v.Toolset) {
			toolsets = append(toolsets, v.Toolset)
		}
	}
	slices.Sort(toolsets)
	var b strings.Builder
	fmt.Fprintf(&b, "# Verbs\n\nMade from the schemas by `make docs`. %d verbs in %d toolsets; `powernode tools explain VERB` says the same of the\nprogram that you run.\n",
		len(verbs), len(toolsets))
	for _, toolset := range toolsets {
		fmt.Fprintf(&b, "\n## Toolset %s\n", toolset)
		for _, v := range verbs {
			if v.Toolset != toolset {
				continue
			}
			if err := describe(&b, v); err != nil {
				return nil, fmt.Errorf("describe %s: %w", v.Name, err)
			}
		}
	}
	return []byte(b.String()), nil
}

func describe(b *strings.Builder, v *schema.Verb) error {
	fmt.Fprintf(b, "\n### %s\n\n%s\n\n", v.Name, v.Description)
	if err := describeParameters(b, v); err != nil {
		return err
	}
	fmt.Fprintf(b, "Answers `%s`. Needs the permission `%s`.", strings.Join(answered(v), "`, `"), v.Permission)
	if v.HumanOnly {
		b.WriteString(" Takes a person's credential.")
	}
	if v.Gated() {
		fmt.Fprintf(b, " Category `%s`, by default %s.", v.Category, governance.Default(v.Category))
	}
	for _, category := range v.Escalates {
		when := "For some arguments"
		if governance.OfThePlatform(category) {
			when = "Where the platform itself calls it, as a remedy:"
		}
		fmt.Fprintf(b, " %s `%s`, by default %s.", when, category, governance.Default(category))
	}
	if hints := annotated(v.Annotations); len(hints) > 0 {
		fmt.Fprintf(b, " It is %s.", strings.Join(hints, ", "))
	}
	b.WriteString("\n")
	return nil
}

// answered are the keys of a verb's own answer, without those of a parked one.
func answered(v *schema.Verb) []string {
	parked := []string{"pending", "deferred_operation_id", "action_category", "plan_digest", "expires_at", "message"}
	names := slices.Clone(v.OutputShape().Names)
	if !v.Gated() || v.Name == "request_confirmation" {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(parked, name) })
}

func annotated(a schema.Annotations) (hints []string) {
	if a.ReadOnly {
		hints = append(hints, "read only")
	}
	if a.Destructive {
		hints = append(hints, "destructive")
	}
	if a.Idempotent {
		hints = append(hints, "idempotent")
	}
	return hints
}

// property is what a schema says of a parameter.
type property struct {
	Type        string          `json:"type"`
	Description string          `json:"description"`
	Default     json.RawMessage `json:"default"`
	Enum        []any           `json:"enum"`
	Minimum     *json.Number    `json:"minimum"`
	Maximum     *json.Number    `json:"maximum"`
	Format      string          `json:"format"`
	Items       *property       `json:"items"`
}

func describeParameters(b *strings.Builder, v *schema.Verb) error {
	var input struct {
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required"`
	}
	if err := json.Unmarshal(v.Input, &input); err != nil {
		return err
	}
	if len(input.Properties) == 0 {
		b.WriteString("No parameters.\n\n")
		return nil
	}
	b.WriteString("| parameter | type | | |\n|---|---|---|---|\n")
	for _, name := range v.Parameters() {
		p := input.Properties[name]
		need := ""
		if slices.Contains(input.Required, name) {
			need = "required"
		} else if len(p.Default) > 0 {
			need = "default `" + string(p.Default) + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, p.kind(), need, strings.ReplaceAll(p.Description, "|", `\|`))
	}
	b.WriteString("\n")
	return nil
}

func (p property) kind() string {
	switch {
	case len(p.Enum) > 0:
		words := make([]string, len(p.Enum))
		for i, e := range p.Enum {
			words[i] = fmt.Sprint(e)
		}
		return strings.Join(words, ", ")
	case p.Type == "array" && p.Items != nil:
		return "array of " + p.Items.kind()
	case p.Minimum != nil && p.Maximum != nil:
		return fmt.Sprintf("%s %s..%s", p.Type, *p.Minimum, *p.Maximum)
	case p.Minimum != nil:
		return fmt.Sprintf("%s from %s", p.Type, *p.Minimum)
	case p.Format != "":
		return p.Format
	}
	return p.Type
}
