package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"k8s.io/client-go/kubernetes"

	"powernode/spec/k3srig/internal/nodepassword"
	"powernode/spec/k3srig/internal/pki"
	"powernode/spec/k3srig/internal/token"
)

const maxRequest = 64 << 10

// Handler answers the supervisor's paths.
type Handler struct {
	Secrets   token.Secrets
	Cluster   *pki.Cluster
	Config    Config
	Bootstrap pki.Bootstrap
	// Members lists the datastore's members.
	Members func(context.Context) ([]Member, error)
	// Client is an administrator's client of the server's own API.
	Client kubernetes.Interface
	// APIServers lists host:port of every server.
	APIServers func(context.Context) ([]string, error)
}

// Wrap answers the supervisor's paths and leaves the rest to next.
func (h *Handler) Wrap(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(PathCACerts, func(w http.ResponseWriter, _ *http.Request) { writePEM(w, h.Cluster.Server.PEM) })
	mux.HandleFunc(PathPing, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pong") })

	mux.HandleFunc(PathConfig, h.need(token.Agent, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, h.Config) }))
	mux.HandleFunc(PathReady, h.need(token.Agent, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	mux.HandleFunc(PathClientCA, h.need(token.Agent, func(w http.ResponseWriter, _ *http.Request) { writePEM(w, h.Cluster.Client.PEM) }))
	mux.HandleFunc(PathServerCA, h.need(token.Agent, func(w http.ResponseWriter, _ *http.Request) { writePEM(w, h.Cluster.Server.PEM) }))
	mux.HandleFunc(PathAPIServers, h.need(token.Agent, h.apiServers))
	mux.HandleFunc(PathClientKubelet, h.need(token.Agent, h.kubeletCert(func(name string, _ []string) (*pki.CA, pki.Subject) {
		return h.Cluster.Client, pki.Subject{CommonName: "system:node:" + name, Groups: []string{"system:nodes"}, Client: true}
	})))
	mux.HandleFunc(PathServeKubelet, h.need(token.Agent, h.kubeletCert(func(name string, ips []string) (*pki.CA, pki.Subject) {
		return h.Cluster.Server, pki.Subject{CommonName: name, Names: append([]string{name, "localhost", "127.0.0.1", "::1"}, ips...), Server: true}
	})))

	mux.HandleFunc(PathBootstrap, h.need(token.Server, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, h.Bootstrap) }))
	mux.HandleFunc(PathDBInfo, h.need(token.Server, h.dbInfo))

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.Path
		if p == PathCACerts || p == PathPing || p == PathDBInfo || strings.HasPrefix(p, "/v1-k3s/") {
			mux.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (h *Handler) need(level token.Access, f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		user, pw, ok := r.BasicAuth()
		access := token.None
		if ok {
			access = h.Secrets.Authorize(user, pw)
		}
		switch {
		case access == token.None:
			refuse(w, r, http.StatusUnauthorized, "not authorized")
		case access < level:
			refuse(w, r, http.StatusForbidden, "forbidden: this path needs the server token")
		default:
			f(w, r)
		}
	}
}

func (h *Handler) kubeletCert(subject func(name string, ips []string) (*pki.CA, pki.Subject)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name, pw := r.Header.Get(HeaderNodeName), r.Header.Get(HeaderNodePassword)
		if name == "" || pw == "" {
			refuse(w, r, http.StatusBadRequest, "node name and node password are required")
			return
		}
		if err := nodepassword.Ensure(r.Context(), h.Client, name, pw); errors.Is(err, nodepassword.ErrRejected) {
			refuse(w, r, http.StatusForbidden, err.Error())
			return
		} else if err != nil {
			refuse(w, r, http.StatusServiceUnavailable, err.Error()) // the API isn't ready yet
			return
		}
		csr, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
		if err != nil {
			refuse(w, r, http.StatusBadRequest, err.Error())
			return
		}
		var ips []string
		for _, ip := range strings.Split(r.Header.Get(HeaderNodeIP), ",") {
			ips = append(ips, strings.TrimSpace(ip))
		}
		ca, s := subject(name, ips)
		cert, err := ca.SignRequest(csr, s)
		if err != nil {
			refuse(w, r, http.StatusBadRequest, err.Error())
			return
		}
		writePEM(w, cert)
	}
}

func (h *Handler) apiServers(w http.ResponseWriter, r *http.Request) {
	list, err := h.APIServers(r.Context())
	if err != nil {
		refuse(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, list)
}

func (h *Handler) dbInfo(w http.ResponseWriter, r *http.Request) {
	members, err := h.Members(r.Context())
	if err != nil {
		refuse(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, members)
}

func refuse(w http.ResponseWriter, r *http.Request, code int, msg string) {
	slog.Warn("supervisor request refused", "path", r.URL.Path, "from", r.RemoteAddr, "status", code, "reason", msg)
	http.Error(w, msg, code)
}

func writePEM(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(b)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		slog.Warn("write supervisor answer", "err", err)
	}
}
