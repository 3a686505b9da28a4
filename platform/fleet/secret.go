package fleet

import (
	"net/url"
	"regexp"
	"strings"

	"powernode/store"
)

// hiddenSecret stands for a secret in what is shown; given back in an update, it means the value that is there.
const hiddenSecret = "[secret]"

var secretKey = regexp.MustCompile(`(?i)(secret|token|passw|passphrase|pwd|credential|cookie|auth|private|pem$|(^|[_.-])(api|access|ssh|account|service)?_?keys?$)`)

// maskSecrets is a free-form object as it may be shown: texts whose names or forms say that they are secret are hidden.
func maskSecrets(o map[string]any) map[string]any { return maskValue(o, false).(map[string]any) }

// HideSecrets is maskSecrets for arguments that hold such an object.
func HideSecrets(arguments store.Object) store.Object { return maskSecrets(arguments) }

func maskValue(v any, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = maskValue(value, secret || secretKey.MatchString(key))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = maskValue(v[i], secret)
		}
		return out
	case string:
		if v != "" && (secret || secretForm(v)) {
			return hiddenSecret
		}
		return v
	case nil:
		return nil
	}
	if secret {
		return hiddenSecret
	}
	return v
}

// secretForm knows private keys and addresses with a credential.
func secretForm(s string) bool {
	if strings.Contains(s, "PRIVATE KEY-----") {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && holdsCredential(u)
}

// holdsCredential says whether an address has a password, or what may be a token in the place of a web address's user: the
// user of others (qemu+ssh://root@host) is none.
func holdsCredential(u *url.URL) bool {
	_, has := u.User.Password()
	return has || (u.User != nil && (u.Scheme == "https" || u.Scheme == "http"))
}

// unmask puts what is there for what is only hidden.
func unmask(given, there any) any {
	switch given := given.(type) {
	case string:
		if given == hiddenSecret && there != nil {
			return there
		}
	case map[string]any:
		was, _ := there.(map[string]any)
		out := make(map[string]any, len(given))
		for key, value := range given {
			out[key] = unmask(value, was[key])
		}
		return out
	case []any:
		was, _ := there.([]any)
		out := make([]any, len(given))
		for i := range given {
			var old any
			if i < len(was) {
				old = was[i]
			}
			out[i] = unmask(given[i], old)
		}
		return out
	}
	return given
}

// secretsIn are the texts that maskSecrets hides.
func secretsIn(v any) []string {
	var out []string
	var walk func(v any, secret bool)
	walk = func(v any, secret bool) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				walk(value, secret || secretKey.MatchString(key))
			}
		case []any:
			for _, value := range v {
				walk(value, secret)
			}
		case string:
			if secret || secretForm(v) {
				out = append(out, v)
			}
		}
	}
	walk(v, false)
	return out
}
