package rest

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"powernode/schema"
)

// SameOrigin keeps web pages of others out. A browser says in Origin whose page a request comes from: it must be the very
// host that the request names. And that must be an address, localhost, or a name that is known to be ours: a name of
// somebody else's can be made to lead here.
func (f *Face) SameOrigin(next http.Handler, known func(name string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !ours(r.Host, known):
			f.write(w, answer{}, refuse(http.StatusForbidden, schema.PermissionDenied, "this is not the host %s", schema.Printable(r.Host)))
		case !fromHere(r):
			f.write(w, answer{}, refuse(http.StatusForbidden, schema.PermissionDenied, "requests from other web pages are refused"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func ours(host string, known func(string) bool) bool {
	name := host
	if bare, _, err := net.SplitHostPort(host); err == nil {
		name = bare
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if _, err := netip.ParseAddr(name); err == nil || strings.EqualFold(name, "localhost") {
		return true
	}
	return known != nil && name != "" && known(name)
}

// fromHere says whether a request comes from no web page, or from one of the same host.
func fromHere(r *http.Request) bool {
	said := r.Header.Values("Origin")
	if len(said) == 0 {
		return true
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	origin, err := url.Parse(said[0])
	return err == nil && len(said) == 1 && origin.Scheme == scheme && strings.EqualFold(origin.Host, r.Host)
}
