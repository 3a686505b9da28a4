// Package args puts together the command lines of Kubernetes' components.
package args

import (
	"sort"
	"strings"
)

// Render merges a component's own arguments with those of the configuration:
// the latter win, and a key that ends in + adds to a list.
func Render(own map[string]string, extra []string) []string {
	args := make(map[string]string, len(own)+len(extra))
	for k, v := range own {
		args[k] = v
	}
	for _, e := range extra {
		key, value, given := strings.Cut(strings.TrimLeft(e, "-"), "=")
		if !given {
			value = "true"
		}
		if name, ok := strings.CutSuffix(key, "+"); ok {
			key = name
			if args[key] != "" {
				value = args[key] + "," + value
			}
		}
		args[key] = value
	}
	out := make([]string, 0, len(args))
	for k, v := range args {
		out = append(out, "--"+k+"="+v)
	}
	sort.Strings(out)
	return out
}
