package config

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// DefaultFile is read when neither --config nor K3S_CONFIG_FILE names another.
const DefaultFile = "/etc/rancher/k3s/config.yaml"

// Values holds what was set, by flag name; a flag that isn't a list has one element.
type Values map[string][]string

// Load merges, from weak to strong: environment, configuration file, the
// files of its .d directory in alphabetical order, command line.
func Load(role Role, args []string, getenv func(string) string) (Values, error) {
	cli, err := parseArgs(role, args)
	if err != nil {
		return nil, err
	}
	merged := Values{}
	for _, f := range flags {
		if f.env == "" || (f.scope == serverOnly && role != RoleServer) {
			continue
		}
		if v := getenv(f.env); v != "" {
			if err := merged.set(f, []string{v}, false); err != nil {
				return nil, err
			}
		}
	}
	file, explicit := DefaultFile, false
	if v := getenv("K3S_CONFIG_FILE"); v != "" {
		file, explicit = v, true
	}
	if v := cli["config"]; len(v) > 0 {
		file, explicit = v[len(v)-1], true
	}
	if err := merged.mergeFiles(role, file, explicit); err != nil {
		return nil, err
	}
	for name, v := range cli {
		merged[name] = v
	}
	merged["config"] = []string{file}
	return merged, nil
}

func (v Values) mergeFiles(role Role, file string, explicit bool) error {
	_, err := os.Stat(file)
	switch {
	case err == nil:
		if err := v.mergeFile(role, file); err != nil {
			return err
		}
	case !os.IsNotExist(err) || explicit:
		return fmt.Errorf("read config file: %w", err)
	}
	dropins, err := filepath.Glob(file + ".d/*")
	if err != nil {
		return fmt.Errorf("list config drop-ins: %w", err)
	}
	sort.Strings(dropins)
	for _, d := range dropins {
		if ext := filepath.Ext(d); ext != ".yaml" && ext != ".yml" {
			continue
		}
		if err := v.mergeFile(role, d); err != nil {
			return err
		}
	}
	return nil
}

func (v Values) mergeFile(role Role, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read config file: %w", err)
	}
	if err := v.mergeYAML(role, raw); err != nil {
		return fmt.Errorf("config file %s: %w", file, err)
	}
	return nil
}

// mergeYAML reads scalars as they are written: an address such as ::1 or a
// mode such as 0600 must not turn into something else on the way.
func (v Values) mergeYAML(role Role, raw []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return err
	}
	if len(doc.Content) == 0 {
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		if root.Tag == "!!null" {
			return nil
		}
		return fmt.Errorf("line %d: a mapping of keys to values is expected", root.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i].Value, root.Content[i+1]
		if seen[key] {
			return fmt.Errorf("line %d: key %s is already defined", root.Content[i].Line, key)
		}
		seen[key] = true
		name, add := strings.CutSuffix(key, "+")
		f, ok := lookup(role, name)
		if !ok {
			return unknown(name)
		}
		values, err := scalars(node)
		if err != nil {
			return fmt.Errorf("key %s: %w", name, err)
		}
		if len(values) > 1 && f.kind != kindList {
			values = values[len(values)-1:] // as if the flag had been given several times
		}
		if err := v.set(f, values, add); err != nil {
			return err
		}
	}
	return nil
}

func scalars(node *yaml.Node) ([]string, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.ScalarNode:
		if node.Tag == "!!null" {
			return nil, nil
		}
		return []string{node.Value}, nil
	case yaml.SequenceNode:
		var out []string
		for _, c := range node.Content {
			if c.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: a list of plain values is expected", c.Line)
			}
			out = append(out, c.Value)
		}
		return out, nil
	}
	return nil, fmt.Errorf("line %d: a plain value or a list is expected", node.Line)
}

// set stores values after checking them against the flag's kind.
func (v Values) set(f flag, values []string, add bool) error {
	for _, s := range values {
		if err := f.check(s); err != nil {
			return err
		}
	}
	if f.kind == kindList {
		var split []string
		for _, s := range values {
			// Component arguments and labels may hold commas of their own.
			if strings.HasSuffix(f.name, "-arg") || f.name == "node-label" || f.name == "node-taint" {
				split = append(split, s)
				continue
			}
			for _, part := range strings.Split(s, ",") {
				if part = strings.TrimSpace(part); part != "" {
					split = append(split, part)
				}
			}
		}
		values = split
	}
	if add && f.kind == kindList {
		values = append(append([]string{}, v[f.name]...), values...)
	}
	v[f.name] = values
	return nil
}

func (f flag) check(s string) error {
	if f.refused != "" && s != "" && s != "false" {
		return fmt.Errorf("the stand-in does not support --%s: %s", f.name, f.refused)
	}
	var err error
	switch f.kind {
	case kindBool:
		_, err = strconv.ParseBool(s)
	case kindInt:
		_, err = strconv.Atoi(s)
	case kindDuration:
		_, err = time.ParseDuration(s)
	}
	if err != nil {
		return fmt.Errorf("invalid value %q for flag -%s: parse error", s, f.name)
	}
	return nil
}

func parseArgs(role Role, args []string) (Values, error) {
	out := Values{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			return nil, fmt.Errorf("unexpected argument %q", arg)
		}
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		f, ok := lookup(role, name)
		if !ok {
			return nil, unknown(name)
		}
		if !given {
			switch {
			case f.kind == kindBool:
				value = "true"
			case i+1 < len(args):
				i++
				value = args[i]
			default:
				return nil, fmt.Errorf("flag needs an argument: -%s", name)
			}
		}
		if err := out.set(f, []string{value}, true); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func unknown(name string) error {
	return fmt.Errorf("flag provided but not defined: -%s", name)
}

func (v Values) text(name, fallback string) string {
	if s := v[name]; len(s) > 0 && s[len(s)-1] != "" {
		return s[len(s)-1]
	}
	return fallback
}

// flag and number can't fail here: set has checked every value.
func (v Values) flag(name string) bool {
	b, err := strconv.ParseBool(v.text(name, "false"))
	return err == nil && b
}

func (v Values) number(name string, fallback int) int {
	n, err := strconv.Atoi(v.text(name, strconv.Itoa(fallback)))
	if err != nil {
		return fallback
	}
	return n
}
