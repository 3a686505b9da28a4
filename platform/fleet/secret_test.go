package fleet

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecretsOfAConfigAreHiddenAndKeptWhenGivenBackHidden(t *testing.T) {
	t.Parallel()
	const pem = "-----BEGIN PRIVATE KEY-----\nMC4\n-----END PRIVATE KEY-----"
	there := map[string]any{"token": "abc", "zone": "z1", "monkey": "ape", "api_key": "k", "accessKeys": []any{"a", "b"}, "key": "k2",
		"login": pem, "proxy": "https://u:pw@p.example", "url": "https://p.example", "auth": map[string]any{"user": "ada", "pin": 1234.0},
		"retries": 3.0, "empty_token": ""}
	want := map[string]any{"token": hiddenSecret, "zone": "z1", "monkey": "ape", "api_key": hiddenSecret,
		"accessKeys": []any{hiddenSecret, hiddenSecret}, "key": hiddenSecret, "login": hiddenSecret, "proxy": hiddenSecret, "url": "https://p.example",
		"auth": map[string]any{"user": hiddenSecret, "pin": hiddenSecret}, "retries": 3.0, "empty_token": ""}
	shown := maskSecrets(there)
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(any(there), unmask(shown, there)); diff != "" {
		t.Errorf("given back (-want +got):\n%s", diff)
	}
	texts := secretsIn(there)
	for _, secret := range []string{"abc", "k", "a", "b", "k2", pem, "https://u:pw@p.example", "ada"} {
		if !slices.Contains(texts, secret) {
			t.Errorf("%q is not among the secrets %q", secret, texts)
		}
	}
}
