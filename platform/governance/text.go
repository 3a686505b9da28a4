package governance

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const quotedLength = 256

// Plain is a text of a machine or an assistant as a person may see it: one line, without control characters and
// without what turns the direction of writing, at most max characters.
func Plain(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < 0x20, r >= 0x7f && r < 0xa0, r == 0x200e, r == 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0xfeff:
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
	if utf8.RuneCountInString(s) > max {
		s = string([]rune(s)[:max-1]) + "…"
	}
	return s
}

// Quote is such a text in quotation marks.
func Quote(s string) string { return strconv.Quote(Plain(s, quotedLength)) }

var secretName = regexp.MustCompile(`(?i)(pass(word|phrase)?|secret|token|credential|private_?key|api_?key|access_?key)s?$`)

const masked = "[secret]"

// Mask replaces texts whose names say that they are secret, and those inside of what has such a name.
func Mask(v any) any { return mask(v, false) }

func mask(v any, secret bool) any {
	switch v := v.(type) {
	case string:
		if secret && v != "" {
			return masked
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = mask(value, secret || secretName.MatchString(key))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = mask(v[i], secret)
		}
		return out
	}
	return v
}
