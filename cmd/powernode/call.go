package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"powernode/schema"
)

// ownFlags are the flags of powernode call itself; no verb has a parameter of these names.
var ownFlags = []string{"json", "output", tokenFileFlag, stateDirFlag, "help"}

const tokenFileFlag = "token-file"

const callText = `Call a verb, as the account's agent unless a token is given, and print {"success": true, "data": …}.

Arguments are one JSON object, or one flag a parameter, read by its declared type. powernode call VERB --help shows the
parameters of a verb.

  --name VALUE, --name=VALUE     a value; hyphens may stand for underscores
  --enabled, --enabled false     a boolean
  --tags a --tags b              a list: repeat the flag, or give JSON: --tags '["a","b"]'
  --options.mtu 1380             a key of an object; or the whole object: --options '{"mtu": 1380}'
  --worker_id null               null, where null clears the value
  --manifest @FILE               a text, list or object from a file, @- from stdin; @@ begins a text with @
  --json OBJECT, @FILE, or -     all arguments at once, from a file or stdin
  --output json|table            how the answer is shown (default json)
  --token-file FILE              call with a token of powernode token, in place of the account's agent; the environment
                                 variable POWERNODE_TOKEN may hold one too

The exit code is 0 where the call ran or waits for an approval; powernode help exit-codes has the others.`

func callCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "call VERB [--json OBJECT | --PARAMETER VALUE...]",
		Short: "Call a verb as the account's agent",
		Long:  callText,
		Example: "  powernode call system_sdwan_create_network --name tenant-a --options.mtu 1380\n" +
			"  powernode call kubernetes_get_kubeconfig --cluster_id a | jq -r .data.kubeconfig",
		DisableFlagParsing: true, // the flags are the verb's
		ValidArgsFunction:  completeCall,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := parseCall(args, cmd.InOrStdin())
			if err != nil {
				return usageError{err}
			}
			if in.help {
				return helpCall(cmd, in.verb)
			}
			if in.stateDir != "" {
				if err := cmd.Flags().Set(stateDirFlag, in.stateDir); err != nil {
					return fmt.Errorf("set flag %s: %w", stateDirFlag, err)
				}
			}
			return withOwnClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
				token, err := credentialFrom(in.tokenFile)
				if err != nil {
					return err
				}
				if token != "" {
					c = c.As(token)
				}
				result, _, err := c.Call(cmd.Context(), in.verb, in.arguments)
				if in.table && err == nil {
					return printTable(cmd.OutOrStdout(), result, widthOf(cmd.OutOrStdout()))
				}
				return printEnvelope(cmd.OutOrStdout(), result, err)
			})(cmd, nil)
		},
	}
}

// helpCall explains a verb, or the command where none is named.
func helpCall(cmd *cobra.Command, name string) error {
	if name == "" {
		return cmd.Help()
	}
	v := verbNamed(name)
	if v == nil {
		return unknownVerbNamed(name)
	}
	return explainVerb(cmd.OutOrStdout(), v)
}

// callInput is what a command line says of a call.
type callInput struct {
	verb      string
	arguments json.RawMessage
	stateDir  string
	tokenFile string
	table     bool
	help      bool
}

// given is a flag as it was written; value is nil where none was.
type given struct {
	name  string
	value *string
}

// callReader reads a command line; stdin is read at most once.
type callReader struct {
	stdin io.Reader
	input *schema.Shape // of the verb; nil: there is none
}

func parseCall(args []string, stdin io.Reader) (callInput, error) {
	in, flags, err := splitCall(args)
	if err != nil || in.help {
		return in, err
	}
	if in.verb == "" {
		return in, errors.New("which verb? powernode tools list shows them")
	}
	r := &callReader{stdin: stdin, input: inputOf(in.verb)}
	i := slices.IndexFunc(flags, func(g given) bool { return g.name == "json" })
	if i < 0 {
		in.arguments, err = r.arguments(flags)
		return in, err
	}
	if len(flags) > 1 || flags[i].value == nil {
		return in, errors.New("--json takes the whole object of arguments, and no parameter stands beside it")
	}
	text := *flags[i].value
	if text == "-" {
		text = "@-"
	}
	if strings.HasPrefix(text, "@") {
		text, err = r.file(text[1:])
	}
	if err == nil && strings.TrimSpace(text) == "" { // a variable that is not set, a program that printed nothing
		err = errors.New("--json is empty: no arguments are {}")
	}
	in.arguments = json.RawMessage(text)
	return in, err
}

// splitCall takes a command line apart. A flag without "=" takes the next word as its value, unless that is a flag too.
func splitCall(args []string) (in callInput, flags []given, err error) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "-h" || word == "--help" {
			in.help = true
			continue
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
		own, err := in.own(g)
		if err != nil {
			return in, nil, err
		}
		if !own {
			flags = append(flags, g)
		}
	}
	return in, flags, nil
}

// own takes a flag of the command itself.
func (in *callInput) own(g given) (bool, error) {
	switch g.name {
	case stateDirFlag:
		if g.value == nil || *g.value == "" {
			return true, errors.New("--state-dir takes a folder")
		}
		in.stateDir = *g.value
	case tokenFileFlag:
		if g.value == nil || *g.value == "" {
			return true, errors.New("--token-file takes a file")
		}
		in.tokenFile = *g.value
	case "output":
		if g.value == nil || *g.value != "json" && *g.value != "table" {
			return true, errors.New("--output takes json or table")
		}
		in.table = *g.value == "table"
	default:
		return false, nil
	}
	return true, nil
}

// isSwitch says whether a flag is a boolean parameter that stands without a value: what follows it is none.
func isSwitch(verb, name, next string) bool {
	if next == "true" || next == "false" {
		return false
	}
	_, p := declaredAt(inputOf(verb), name)
	return p != nil && p.Type == "boolean"
}

func inputOf(verb string) *schema.Shape {
	v := verbNamed(verb)
	if v == nil {
		return nil
	}
	return v.InputShape()
}

// declaredAt finds what a flag's name means: the keys on the way to it, spelt as they are declared, and the declaration; nil:
// there is none, and the verb says so.
func declaredAt(s *schema.Shape, name string) (path []string, declared *schema.Shape) {
	declared = s
	for i, key := range strings.Split(name, ".") {
		spelt := strings.ReplaceAll(key, "-", "_")
		var next *schema.Shape
		if declared != nil {
			if next = declared.Properties[spelt]; next == nil {
				next = declared.Values
			}
		}
		free := declared != nil && declared.FreeForm && declared.Properties[spelt] == nil
		if free || i > 0 && next == nil {
			spelt = key // a key that the caller chose
		}
		path, declared = append(path, spelt), next
	}
	return path, declared
}

// verbNamed finds a verb's declaration; nil: there is none, and the control plane says so.
func verbNamed(name string) *schema.Verb {
	v, err := schema.Named(strings.TrimPrefix(name, "platform."))
	if err != nil {
		return nil
	}
	return v
}

// members is an object with its keys in the order in which they were given.
type members struct {
	keys   []string
	values map[string]any
}

func (m *members) set(key string, value any) {
	if _, there := m.values[key]; !there {
		m.keys = append(m.keys, key)
	}
	m.values[key] = value
}

func newMembers() *members { return &members{values: map[string]any{}} }

// MarshalJSON encodes the keys in order.
func (m *members) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, key := range m.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		pair, err := json.Marshal(map[string]any{key: m.values[key]})
		if err != nil {
			return nil, err
		}
		b.Write(pair[1 : len(pair)-1])
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// arguments makes the object of arguments from flags. What can't be read by its type goes on as text, and so does a flag of
// no parameter: the verb's own refusal explains it.
func (r *callReader) arguments(flags []given) (json.RawMessage, error) {
	root := newMembers()
	for _, g := range flags {
		path, declared := declaredAt(r.input, g.name)
		value, err := r.value(declared, g)
		if err != nil {
			return nil, err
		}
		if err := place(root, path, declared, value, g.name); err != nil {
			return nil, err
		}
	}
	raw, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("encode the arguments: %w", err)
	}
	return raw, nil
}

// place puts a value where its flag's name leads; entries of one list gather.
func place(at *members, path []string, declared *schema.Shape, value any, name string) error {
	for _, key := range path[:len(path)-1] {
		inside, ok := at.values[key].(*members)
		if _, there := at.values[key]; there && !ok {
			return fmt.Errorf("--%s is given twice: whole, and by its keys", name)
		}
		if !ok {
			inside = newMembers()
			at.set(key, inside)
		}
		at = inside
	}
	key := path[len(path)-1]
	before, twice := at.values[key]
	entries, list := value.([]any)
	gathered, gathers := before.([]any)
	switch {
	case !twice:
		at.set(key, value)
	case declared != nil && declared.Type == "array" && list && gathers:
		at.set(key, append(gathered, entries...))
	default:
		return fmt.Errorf("--%s is given twice", name)
	}
	return nil
}

// value reads a flag's value by its declaration.
func (r *callReader) value(declared *schema.Shape, g given) (any, error) {
	if g.value == nil {
		if declared != nil && declared.Type != "boolean" {
			return nil, fmt.Errorf("--%s takes a value", g.name)
		}
		return true, nil // a flag alone is a switch
	}
	text, err := r.text(declared, g)
	if err != nil {
		return nil, err
	}
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the value of --%s is not valid UTF-8", g.name)
	}
	if declared == nil || declared.Type != "array" {
		return declared.FromText(text), nil
	}
	whole, ok := declared.FromText(text).(json.RawMessage)
	if !ok {
		return []any{declared.Items.FromText(text)}, nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(whole, &entries); err != nil {
		return nil, fmt.Errorf("read the list of --%s: %w", g.name, err)
	}
	list := make([]any, len(entries))
	for i := range entries {
		list[i] = entries[i]
	}
	return list, nil
}

// text is a flag's value, or what the file holds that it names.
func (r *callReader) text(declared *schema.Shape, g given) (string, error) {
	text := *g.value
	if declared == nil || !slices.Contains([]string{"string", "object", "array"}, declared.Type) {
		return text, nil
	}
	name, isFile := strings.CutPrefix(text, "@")
	switch {
	case !isFile:
		return text, nil
	case strings.HasPrefix(name, "@"):
		return name, nil
	}
	content, err := r.file(name)
	if err != nil {
		return "", fmt.Errorf("--%s: %w (a text that begins with @ is written @@)", g.name, err)
	}
	return content, nil
}

// file reads a file of arguments, "-" is stdin.
func (r *callReader) file(name string) (string, error) {
	from := r.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("open the file: %w", err)
		}
		defer f.Close() // it was read
		from = f
	}
	raw, err := io.ReadAll(io.LimitReader(from, schema.MaxArguments+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read %s: %w", name, err)
	case len(raw) > schema.MaxArguments:
		return "", fmt.Errorf("%s is larger than %d bytes", name, schema.MaxArguments)
	}
	return string(raw), nil
}
