package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"powernode/schema"
)

func callCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "call VERB [--json OBJECT | --PARAMETER VALUE...]",
		Short: "Call a verb as the account's agent",
		Long: "Call a verb as the account's agent and print {\"success\": true, \"data\": …}. Arguments are one JSON object, or one flag a\n" +
			"parameter, read by its declared type; a list is given as JSON or by repeating its flag. powernode tools explain VERB shows\n" +
			"the parameters. The exit code is 0 where the call ran or waits for an approval, 1 where it was refused.",
		Example: "  powernode call system_sdwan_create_network --name tenant-a\n" +
			"  powernode call kubernetes_get_kubeconfig --cluster_id a | jq -r .data.kubeconfig",
		DisableFlagParsing: true, // the flags are the verb's
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := parseCall(args)
			if err != nil {
				return err
			}
			if in.help {
				return cmd.Help()
			}
			if in.stateDir != "" {
				if err := cmd.Flags().Set(stateDirFlag, in.stateDir); err != nil {
					return fmt.Errorf("set flag %s: %w", stateDirFlag, err)
				}
			}
			return withClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
				result, _, err := c.Call(cmd.Context(), in.verb, in.arguments)
				return printEnvelope(cmd.OutOrStdout(), result, err)
			})(cmd, nil)
		},
	}
}

// callInput is what a command line says of a call.
type callInput struct {
	verb      string
	arguments json.RawMessage
	stateDir  string
	help      bool
}

// given is a flag as it was written; value is nil where none was.
type given struct {
	name  string
	value *string
}

func parseCall(args []string) (callInput, error) {
	in, flags, err := splitCall(args)
	if err != nil || in.help {
		return in, err
	}
	if in.verb == "" {
		return in, errors.New("which verb? powernode tools list shows them")
	}
	if i := slices.IndexFunc(flags, func(g given) bool { return g.name == "json" }); i >= 0 {
		if len(flags) > 1 || flags[i].value == nil {
			return in, errors.New("--json takes the whole object of arguments, and no other flag stands beside it")
		}
		in.arguments = json.RawMessage(*flags[i].value)
		return in, nil
	}
	in.arguments, err = argumentsOf(in.verb, flags)
	return in, err
}

// splitCall takes a command line apart. A flag without "=" takes the next word as its value, unless that is a flag too.
func splitCall(args []string) (in callInput, flags []given, err error) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "-h" || word == "--help" {
			in.help = true
			return in, nil, nil
		}
		name, isFlag := strings.CutPrefix(word, "--")
		if !isFlag || name == "" {
			if in.verb != "" {
				return in, nil, fmt.Errorf("what is %q? Arguments are flags: --PARAMETER VALUE", word)
			}
			in.verb = word
			continue
		}
		g := given{name: name}
		if name, value, cut := strings.Cut(name, "="); cut {
			g = given{name, &value}
		} else if i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") && !isSwitch(in.verb, name, args[i+1]) {
			i++
			g.value = &args[i]
		}
		if g.name == stateDirFlag {
			if g.value == nil {
				return in, nil, errors.New("--state-dir takes a folder")
			}
			in.stateDir = *g.value
			continue
		}
		g.name = strings.ReplaceAll(g.name, "-", "_")
		flags = append(flags, g)
	}
	return in, flags, nil
}

// isSwitch says whether a flag is a boolean parameter that stands without a value: what follows it is none.
func isSwitch(verb, name, next string) bool {
	if next == "true" || next == "false" {
		return false
	}
	p := parameterOf(verb, strings.ReplaceAll(name, "-", "_"))
	return p != nil && p.Type == "boolean"
}

func parameterOf(verb, name string) *schema.Shape {
	v := verbNamed(verb)
	if v == nil {
		return nil
	}
	return v.InputShape().Properties[name]
}

// verbNamed finds a verb's declaration; nil: there is none, and the control plane says so.
func verbNamed(name string) *schema.Verb {
	verbs, err := schema.Verbs()
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(verbs, func(v *schema.Verb) bool { return v.Name == strings.TrimPrefix(name, "platform.") })
	if i < 0 {
		return nil
	}
	return verbs[i]
}

// argumentsOf makes the object of arguments from flags. What it can't read by its type goes on as text, and so does a
// flag of no parameter: the verb's own refusal explains it.
func argumentsOf(verb string, flags []given) (json.RawMessage, error) {
	var order []string
	values := map[string]any{}
	for _, g := range flags {
		p := parameterOf(verb, g.name)
		before, twice := values[g.name]
		if !twice {
			order = append(order, g.name)
		}
		if p != nil && p.Type == "array" {
			list, _ := before.([]any)
			values[g.name] = append(list, listOf(p, g)...)
			continue
		}
		if twice {
			return nil, fmt.Errorf("--%s is given twice", g.name)
		}
		values[g.name] = valueOf(p, g)
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, name := range order {
		if i > 0 {
			b.WriteByte(',')
		}
		pair, err := json.Marshal(map[string]any{name: values[name]})
		if err != nil {
			return nil, fmt.Errorf("encode --%s: %w", name, err)
		}
		b.Write(pair[1 : len(pair)-1])
	}
	b.WriteByte('}')
	return json.RawMessage(b.String()), nil
}

func listOf(p *schema.Shape, g given) []any {
	if g.value != nil && strings.HasPrefix(strings.TrimSpace(*g.value), "[") {
		var list []json.RawMessage
		if json.Unmarshal([]byte(*g.value), &list) == nil {
			out := make([]any, len(list))
			for i := range list {
				out[i] = list[i]
			}
			return out
		}
	}
	return []any{valueOf(p.Items, g)}
}

func valueOf(p *schema.Shape, g given) any {
	if g.value == nil {
		return true // a flag alone is a switch
	}
	text := *g.value
	if p == nil {
		return text
	}
	switch p.Type {
	case "boolean":
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case "integer", "number":
		var n json.Number
		if json.Unmarshal([]byte(text), &n) == nil && !strings.HasPrefix(text, `"`) {
			return n
		}
	case "object":
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	}
	if p.Nullable && text == "null" {
		return nil
	}
	return text
}
