package mcp

import (
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/tools"
)

// Choice is which verbs are listed. All of them can be called, whatever is listed.
type Choice struct {
	toolsets []string // nil: the default list
	all      bool
	ReadOnly bool // lists readers, and refuses writers
}

// always are listed whatever is chosen: with them every other verb is within reach, as far as the caller may call it.
var always = []string{"platform_preview", "platform_search_verbs", "platform_call_verb"}

// ParseChoice reads a choice of toolsets: empty for the default list, "all", or names of toolsets with commas between.
func ParseChoice(toolsets string, readOnly bool) (Choice, error) {
	known := schema.Toolsets()
	c := Choice{ReadOnly: readOnly}
	if strings.TrimSpace(toolsets) == "" {
		return c, nil
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

// lists says whether a verb is in the list of a caller.
func (c Choice) lists(v *schema.Verb, caller tools.Caller) bool {
	switch {
	case slices.Contains(always, v.Name):
		return true
	case (c.ReadOnly || caller.ReadOnly) && !v.Annotations.ReadOnly:
		return false
	case caller.Toolsets != nil && !slices.Contains(caller.Toolsets, v.Toolset): // a token may be narrowed to some
		return false
	case c.all:
		return true
	case c.toolsets != nil:
		return slices.Contains(c.toolsets, v.Toolset)
	}
	return v.Default
}
