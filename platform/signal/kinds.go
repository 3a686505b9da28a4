package signal

import (
	"maps"
	"slices"
	"strings"

	"powernode/schema"
)

const nearKinds = 12

// Known says whether a kind is in the catalogue.
func Known(kind string) bool {
	_, known := Catalogue[kind]
	return known
}

// WithPrefix are the kinds that begin with a prefix which ends at a dot or word border, sorted.
func WithPrefix(prefix string) []string {
	var kinds []string
	for kind := range Catalogue {
		rest, fits := strings.CutPrefix(kind, prefix)
		if fits && prefix != "" && (rest == "" || isBorder(rest[0]) || isBorder(prefix[len(prefix)-1])) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

func isBorder(c byte) bool { return c == '.' || c == '_' }

// Near are kinds that somebody may have meant with a text that is none: those that begin with it, else the nearest.
func Near(text string) []string {
	if kinds := WithPrefix(text); len(kinds) > 0 {
		return kinds[:min(len(kinds), nearKinds)]
	}
	if near := schema.Nearest(text, slices.Sorted(maps.Keys(Catalogue))); near != "" {
		return []string{near}
	}
	if near := schema.Nearest(text, groups()); near != "" {
		kinds := WithPrefix(near)
		return kinds[:min(len(kinds), nearKinds)]
	}
	return []string{}
}

// groups are what kinds begin with, their first word included: system.k3s, system.sdwan.
func groups() []string {
	found := map[string]bool{}
	for kind := range Catalogue {
		dot := strings.IndexByte(kind, '.')
		if border := strings.IndexAny(kind[dot+1:], "._"); border > 0 {
			found[kind[:dot+1+border]] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// AtLeast are the severities from one on; nil, which is all, where it is empty.
func AtLeast(severity string) []string {
	if severity == "" {
		return nil
	}
	var out []string
	for _, s := range []string{Low, Medium, High, Critical} {
		if rank[s] >= rank[severity] {
			out = append(out, s)
		}
	}
	return out
}

// Rises says whether a severity is above another.
func Rises(from, to string) bool { return rank[to] > rank[from] }
