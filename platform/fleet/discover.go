package fleet

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"powernode/store"
)

// Found is a template or module that fits an intent. Score is between 0 and 1: how much of the intent it speaks of.
type Found struct {
	ID    string
	Name  string
	Score float64
	Why   string
}

// text is one part of what is known of a thing, with its weight: a word in a name says more than one in a description.
type text struct {
	label  string
	weight float64
	words  string
}

// Weights of the parts.
const (
	weightName        = 1.0
	weightProvides    = 0.9
	weightCarries     = 0.8
	weightDescription = 0.6
	weightNeeds       = 0.3
	partly            = 0.7 // of a weight, for a word that only begins alike
)

// ModuleSearch narrows a search for modules.
type ModuleSearch struct {
	Intent          string
	Top             int
	Variety         string
	IncludeDisabled bool
}

// DiscoverModules finds modules by what they are called, describe, provide and need. It is text alone, and the same
// question has the same answer.
func (s *Service) DiscoverModules(ctx context.Context, v *store.View, acct store.AccountID, in ModuleSearch) ([]Found, error) {
	all, err := declaredModules(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	asked := wordsOf(in.Intent)
	found := []Found{}
	for _, m := range all {
		if (m.Enabled || in.IncludeDisabled) && (in.Variety == "" || m.Variety == in.Variety) {
			found = rank(found, asked, string(m.ID), m.Name, moduleTexts(m))
		}
	}
	return best(found, in.Top), nil
}

func moduleTexts(m store.Module) []text {
	d := m.Dependencies.V
	return []text{{"name", weightName, m.Name}, {"provides", weightProvides, strings.Join(d.Provides, " ")},
		{"description", weightDescription, m.Description}, {"needs", weightNeeds, strings.Join(append(slices.Clone(d.Requires), d.Recommends...), " ")}}
}

// TemplateSearch narrows a search for templates.
type TemplateSearch struct {
	Intent          string
	Top             int
	PlatformID      store.PlatformID
	IncludeDisabled bool
}

// DiscoverTemplates finds templates by what they and their modules say.
func (s *Service) DiscoverTemplates(ctx context.Context, v *store.View, acct store.AccountID, in TemplateSearch) ([]Found, error) {
	if in.PlatformID != "" {
		if _, err := store.PlatformByID(ctx, v, acct, in.PlatformID); err != nil {
			return nil, orNotFound(err, "platform not found")
		}
	}
	all, err := store.Templates(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	asked := wordsOf(in.Intent)
	found := []Found{}
	for _, t := range all {
		if !t.Enabled && !in.IncludeDisabled || in.PlatformID != "" && t.PlatformID != in.PlatformID {
			continue
		}
		texts, err := templateTexts(ctx, v, t)
		if err != nil {
			return nil, err
		}
		found = rank(found, asked, string(t.ID), t.Name, texts)
	}
	return best(found, in.Top), nil
}

// templateTexts are a template's own words, and those of the modules that an apply would bring.
func templateTexts(ctx context.Context, v *store.View, t store.Template) ([]text, error) {
	joins, err := store.TemplateModules(ctx, v, t.AccountID, t.ID)
	if err != nil {
		return nil, err
	}
	members, err := closureOf(ctx, v, t.AccountID, joins, false)
	if err != nil {
		return nil, err
	}
	out := []text{{"name", weightName, t.Name}, {"description", weightDescription, t.Description}}
	for _, m := range members {
		d := m.module.Dependencies.V
		out = append(out, text{"module " + m.module.Name, weightCarries, m.module.Name + " " + strings.Join(d.Provides, " ")},
			text{"description of module " + m.module.Name, weightNeeds, m.module.Description})
	}
	return out, nil
}

// rank appends a thing that has any of the asked words.
func rank(found []Found, asked []string, id, name string, texts []text) []Found {
	var sum float64
	var why []string
	for _, word := range asked {
		weight, label := 0.0, ""
		for _, t := range texts {
			if w := t.weight * likeness(word, wordsOf(t.words)); w > weight {
				weight, label = w, t.label
			}
		}
		if weight > 0 {
			sum += weight
			why = append(why, fmt.Sprintf("%s: %s", label, word))
		}
	}
	if sum == 0 {
		return found
	}
	score := math.Round(1000*sum/float64(len(asked))) / 1000
	return append(found, Found{ID: id, Name: name, Score: score, Why: strings.Join(why, "; ")})
}

// likeness says how well a word is met by the best of others.
func likeness(word string, others []string) float64 {
	like := 0.0
	for _, other := range others {
		switch {
		case word == other || slices.Contains(synonyms[word], other):
			return 1
		case min(len(word), len(other)) >= 4 && (strings.HasPrefix(word, other) || strings.HasPrefix(other, word)):
			like = partly
		}
	}
	return like
}

// best are the first of what was found: higher score first, then name.
func best(found []Found, top int) []Found {
	slices.SortFunc(found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return found[:min(len(found), top)]
}

// synonyms are words of the field that mean the same thing here.
var synonyms = map[string][]string{
	"kubernetes": {"k3s"}, "k8s": {"k3s", "kubernetes"}, "k3s": {"kubernetes"},
	"worker": {"agent"}, "agent": {"worker"}, "node": {"worker", "agent"},
	"master": {"server", "control"}, "controlplane": {"server", "control"}, "plane": {"server"}, "server": {"control"},
}

// filler are words that say nothing of what is looked for.
var filler = []string{"a", "an", "and", "any", "for", "from", "i", "in", "into", "is", "it", "me", "my", "need", "of", "on", "or", "some", "that",
	"the", "to", "want", "we", "which", "with"}

// wordsOf are the words of a text in lower case, each once, without filler and without the s of a plural.
func wordsOf(s string) []string {
	var out []string
	for _, word := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if len(word) > 3 && !strings.HasSuffix(word, "ss") && word != "kubernetes" {
			word = strings.TrimSuffix(word, "s")
		}
		if !slices.Contains(filler, word) && !slices.Contains(out, word) {
			out = append(out, word)
		}
	}
	return out
}
