package token

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	hash := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		in   string
		want Token
		err  string
	}{
		"short":      {in: "secret", want: Token{Password: "secret"}},
		"spaces":     {in: " secret\n", want: Token{Password: "secret"}},
		"server":     {in: "K10" + hash + "::server:pw", want: Token{CAHash: hash, User: "server", Password: "pw"}},
		"node":       {in: "K10" + hash + "::node:p:w", want: Token{CAHash: hash, User: "node", Password: "p:w"}},
		"empty":      {in: " ", err: "token must not be empty"},
		"hash":       {in: "K10abc::server:pw", err: "invalid token CA hash length"},
		"no secret":  {in: "K10" + hash + "::server:", err: "invalid token format"},
		"no creds":   {in: "K10" + hash, err: "invalid token format"},
		"no divider": {in: "K10" + hash + "::pw", err: "invalid token format"},
	} {
		got, err := Parse(c.in)
		switch {
		case c.err != "":
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: error %v, want %q", name, err, c.err)
			}
		case err != nil || got != c.want:
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestFormatAndCheckCA(t *testing.T) {
	ca := []byte("-----BEGIN CERTIFICATE-----\n")
	tok, err := Parse(Format(ca, UserServer, "pw"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tok.CheckCA(ca); err != nil {
		t.Errorf("own CA: %v", err)
	}
	if err := tok.CheckCA([]byte("other")); err == nil || !strings.Contains(err.Error(), "token CA hash does not match the Cluster CA certificate hash") {
		t.Errorf("other CA: %v", err)
	}
	if err := (Token{Password: "pw"}).CheckCA(ca); err != nil {
		t.Errorf("short form: %v", err)
	}
}

func TestAuthorize(t *testing.T) {
	apart := Secrets{Server: "s", Agent: "a"}
	one := Secrets{Server: "s", Agent: "s"}
	for _, c := range []struct {
		secrets        Secrets
		user, password string
		want           Access
	}{
		{apart, UserServer, "s", Server},
		{apart, UserServer, "a", None},
		{apart, UserNode, "a", Agent},
		{apart, UserNode, "s", Agent},
		{apart, UserNode, "x", None},
		{apart, "admin", "s", None},
		{apart, UserNode, "", None},
		{one, UserNode, "s", Agent},
		{one, UserServer, "s", Server},
		{Secrets{}, UserServer, "", None},
	} {
		if got := c.secrets.Authorize(c.user, c.password); got != c.want {
			t.Errorf("%+v %s:%s: %v, want %v", c.secrets, c.user, c.password, got, c.want)
		}
	}
}
