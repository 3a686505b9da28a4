package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/store"
)

// Kinds of a difference.
const (
	diffAdded   = "added"
	diffRemoved = "removed"
	diffChanged = "changed"
)

// ArtifactChange is an artefact that one of two versions has, or has otherwise.
type ArtifactChange struct {
	OS, Arch string
	Change   string
	From, To *store.VersionArtifact
}

// ManifestChange is a value of a manifest that differs, as JSON text; "" where there is none.
type ManifestChange struct {
	Pointer  string
	Change   string
	From, To string
}

// VersionDiff compares two versions of a module.
func (s *Service) VersionDiff(ctx context.Context, v *store.View, acct store.AccountID,
	a, b store.ModuleVersionID) ([]ArtifactChange, []ManifestChange, error) {
	before, err := VersionByID(ctx, v, acct, a)
	if err != nil {
		return nil, nil, err
	}
	after, err := VersionByID(ctx, v, acct, b)
	if err != nil {
		return nil, nil, err
	}
	if before.ModuleID != after.ModuleID {
		return nil, nil, schema.InvalidArgument("/version_b_id", string(b), "version_a_id and version_b_id name versions of two modules")
	}
	from, err := decodeManifest(before)
	if err != nil {
		return nil, nil, err
	}
	to, err := decodeManifest(after)
	if err != nil {
		return nil, nil, err
	}
	changes := []ManifestChange{}
	diffValues(&changes, "", from, to)
	return diffArtifacts(before.Artifacts.V, after.Artifacts.V), changes, nil
}

func decodeManifest(v store.ModuleVersion) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(v.Manifest.V))
	dec.UseNumber() // a number is compared as it is spelt
	out := any(map[string]any{})
	if len(v.Manifest.V) == 0 {
		return out, nil
	}
	if err := dec.Decode(&out); err != nil {
		return nil, fmt.Errorf("read the manifest of version %s: %w", v.ID, err)
	}
	return out, nil
}

func diffArtifacts(before, after []store.VersionArtifact) []ArtifactChange {
	changes := []ArtifactChange{}
	find := func(list []store.VersionArtifact, of store.VersionArtifact) *store.VersionArtifact {
		at := slices.IndexFunc(list, func(a store.VersionArtifact) bool { return a.OS == of.OS && a.Arch == of.Arch })
		if at < 0 {
			return nil
		}
		return &list[at]
	}
	for _, a := range before {
		now := find(after, a)
		switch {
		case now == nil:
			changes = append(changes, ArtifactChange{OS: a.OS, Arch: a.Arch, Change: diffRemoved, From: &a})
		case *now != a:
			changes = append(changes, ArtifactChange{OS: a.OS, Arch: a.Arch, Change: diffChanged, From: &a, To: now})
		}
	}
	for _, b := range after {
		if find(before, b) == nil {
			changes = append(changes, ArtifactChange{OS: b.OS, Arch: b.Arch, Change: diffAdded, To: &b})
		}
	}
	slices.SortFunc(changes, func(a, b ArtifactChange) int { return strings.Compare(a.OS+"/"+a.Arch, b.OS+"/"+b.Arch) })
	return changes
}

// diffValues appends where two values differ. Entries that have a path or a name are the same entry by it, wherever they
// stand; a pointer is that in the later value, but for what was removed.
func diffValues(out *[]ManifestChange, pointer string, from, to any) {
	if a, ok := from.(map[string]any); ok {
		if b, ok := to.(map[string]any); ok {
			diffObjects(out, pointer, a, b)
			return
		}
	}
	if a, ok := entries(from); ok {
		if b, ok := entries(to); ok {
			diffEntries(out, pointer, a, b)
			return
		}
	}
	if a, b := spelt(from), spelt(to); a != b {
		*out = append(*out, ManifestChange{Pointer: pointer, Change: diffChanged, From: a, To: b})
	}
}

func diffObjects(out *[]ManifestChange, pointer string, a, b map[string]any) {
	keys := map[string]bool{}
	for key := range a {
		keys[key] = true
	}
	for key := range b {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		at := pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
		from, had := a[key]
		to, has := b[key]
		switch {
		case !has:
			*out = append(*out, ManifestChange{Pointer: at, Change: diffRemoved, From: spelt(from)})
		case !had:
			*out = append(*out, ManifestChange{Pointer: at, Change: diffAdded, To: spelt(to)})
		default:
			diffValues(out, at, from, to)
		}
	}
}

// entry is an element of a list that is known by its path or name.
type entry struct {
	key   string
	at    int
	value any
}

// entries are a list whose elements all have a path or a name of their own.
func entries(value any) ([]entry, bool) {
	list, ok := value.([]any)
	if !ok {
		return nil, false
	}
	out := make([]entry, 0, len(list))
	seen := map[string]bool{}
	for i, element := range list {
		o, _ := element.(map[string]any)
		key, _ := o["path"].(string)
		if key == "" {
			key, _ = o["name"].(string)
		}
		if key == "" || seen[key] {
			return nil, false
		}
		seen[key] = true
		out = append(out, entry{key, i, element})
	}
	return out, true
}

func diffEntries(out *[]ManifestChange, pointer string, a, b []entry) {
	find := func(list []entry, key string) int {
		return slices.IndexFunc(list, func(e entry) bool { return e.key == key })
	}
	for _, e := range a {
		if find(b, e.key) < 0 {
			*out = append(*out, ManifestChange{Pointer: fmt.Sprintf("%s/%d", pointer, e.at), Change: diffRemoved, From: spelt(e.value)})
		}
	}
	for _, e := range b {
		at := fmt.Sprintf("%s/%d", pointer, e.at)
		if was := find(a, e.key); was >= 0 {
			diffValues(out, at, a[was].value, e.value)
			continue
		}
		*out = append(*out, ManifestChange{Pointer: at, Change: diffAdded, To: spelt(e.value)})
	}
}

// maxSpelt bounds a value that a difference shows.
const maxSpelt = 2000

func spelt(v any) string {
	r := []rune(string(mustJSON(v)))
	if len(r) > maxSpelt {
		return string(r[:maxSpelt]) + "…"
	}
	return string(r)
}
