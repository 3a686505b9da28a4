package mcp

import (
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
)

// Choice is which verbs are listed. All of them can be called, whatever is listed.
type Choice struct {
	toolsets []string // nil: the default list
	all      bool
	ReadOnly bool // lists readers, and refuses writers
}

// always are listed whatever is chosen: with them every other verb is within reach.
var always = []string{"platform_preview", "platform_search_verbs", "platform_call_verb"}

// ParseChoice reads a choice of toolsets: empty for the default list, "all", or names of toolsets with commas between.
func ParseChoice(toolsets string, readOnly bool) (Choice, error) {
	c := Choice{ReadOnly: readOnly}
	if strings.TrimSpace(toolsets) == "" {
		return c, nil
	}
	known, err := knownToolsets()
	if err != nil {
		return c, err
	}
	for name := range strings.SplitSeq(toolsets, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "all":
			c.all = true
		case slices.Contains(known, name):
			c.toolsets = append(c.toolsets, name)
		default:
			return c, fmt.Errorf("no toolset is named %q: there are all, %s", name, strings.Join(known, ", "))
		}
	}
	return c, nil
}

func knownToolsets() ([]string, error) {
	verbs, err := schema.Verbs()
	if err != nil {
		return nil, err
	}
	var known []string
	for _, v := range verbs {
		if !slices.Contains(known, v.Toolset) {
			known = append(known, v.Toolset)
		}
	}
	slices.Sort(known)
	return known, nil
}

// lists says whether a verb is in the list.
func (c Choice) lists(v *schema.Verb) bool {
	switch {
	case c.ReadOnly && !v.Annotations.ReadOnly:
		return false
	case c.all, slices.Contains(always, v.Name):
		return true
	case c.toolsets != nil:
		return slices.Contains(c.toolsets, v.Toolset)
	}
	return v.Default
}
