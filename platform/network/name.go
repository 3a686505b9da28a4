package network

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"powernode/schema"
	"powernode/store"
)

const (
	maxNetworkName = 64
	maxVIPName     = 80
	maxRuleName    = 64
	maxLabel       = 64
	maxTags        = 32
)

var tagPattern = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// checkName refuses a name that is too long, blank, or breaks a line.
func checkName(pointer, name string, limit int) error {
	length := utf8.RuneCountInString(name)
	if strings.TrimSpace(name) == "" || length > limit {
		return schema.InvalidArgument(pointer, name, "%s must have 1..%d characters (got %d)", strings.TrimPrefix(pointer, "/"), limit, length)
	}
	if strings.ContainsFunc(name, unicode.IsControl) {
		return schema.InvalidArgument(pointer, name, "%s must not have a line break or another control character", strings.TrimPrefix(pointer, "/"))
	}
	return nil
}

// NormalTags trims tags and drops doubles; a tag that breaks the rule is refused.
func NormalTags(pointer string, tags []string) ([]string, error) {
	out := []string{}
	seen := map[string]bool{}
	for i, t := range tags {
		t = strings.TrimSpace(t)
		if !tagPattern.MatchString(t) {
			return nil, schema.InvalidArgument(pointer+"/"+strconv.Itoa(i), t, "a tag has 1..64 characters of a-z 0-9 - _ .")
		}
		if !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	if len(out) > maxTags {
		return nil, schema.InvalidArgument(pointer, nil, "at most %d tags", maxTags)
	}
	return out, nil
}

// slugOf makes a slug of a name: lower case, other characters to hyphens, squeezed and trimmed.
func slugOf(name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	if slug := strings.TrimRight(b.String(), "-"); slug != "" {
		return slug
	}
	return "network"
}

// freeSlug is the name's slug, with a number where another network has it.
func freeSlug(ctx context.Context, v *store.View, acct store.AccountID, name string) (string, error) {
	base := slugOf(name)
	slug := base
	for n := 1; ; n++ {
		_, err := store.NetworkBySlug(ctx, v, acct, slug)
		free, err := absent(err)
		if err != nil || free {
			return slug, err
		}
		slug = fmt.Sprintf("%s-%d", base, n)
	}
}
