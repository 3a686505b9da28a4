package schema

import "strings"

// alias looks a name up in the verb's table of names that people use for something else.
func (v *Verb) alias(given string) ([]string, *Hint) {
	for _, a := range v.Aliases {
		if a.Given == given {
			return a.Meant, a.Hint
		}
	}
	return nil, nil
}

// Nearest is the declared name that a misspelt one most likely meant, or "".
func Nearest(given string, declared []string) string { return nearest(given, declared) }

// nearest takes the first that fits: a name that contains or is contained in the given one at word borders, then the
// nearest within an edit distance of a third of its length.
func nearest(given string, declared []string) string {
	given = strings.ToLower(given)
	if len(given) > 128 {
		return ""
	}
	for _, name := range declared {
		if given != "" && (containsWords(name, given) || containsWords(given, name)) {
			return name
		}
	}
	best, bestDistance := "", 0
	for _, name := range declared {
		d := editDistance(given, name)
		if d <= len(name)/3 && (best == "" || d < bestDistance) {
			best, bestDistance = name, d
		}
	}
	return best
}

// containsWords says whether part stands in whole between word borders.
func containsWords(whole, part string) bool {
	return strings.Contains("_"+strings.NewReplacer("-", "_", ".", "_").Replace(whole)+"_", "_"+part+"_")
}

// editDistance is Levenshtein's, over bytes: declared names are ASCII.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}
	return row[len(b)]
}
