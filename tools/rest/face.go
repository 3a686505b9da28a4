package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
)

const (
	// bodyWait bounds how long a body may take, answerWait how long a client may take to read an answer.
	bodyWait   = 30 * time.Second
	answerWait = 30 * time.Second
	// CallIDHeader names a call that may be sent again: the same verb and body under the same id is done once, and is
	// answered for an hour as it was at first.
	CallIDHeader = "Powernode-Call-Id"
	maxCallID    = 128
)

// Authenticate says whose bearer token it is; governance.ErrNoCredential: nobody's.
type Authenticate func(ctx context.Context, token string) (tools.Caller, error)

// Face serves a platform over REST.
type Face struct {
	Platform     *tools.Platform
	Version      string
	Log          zerolog.Logger
	Authenticate Authenticate
	Places       *tools.Places // bound how many requests are worked on at once; nil: the face's own
}

// route is one path with its methods.
type route struct {
	pattern string
	methods map[string]answerer
	public  bool // needs no credential
	query   bool // declares query keys, which its answerers hold to that
}

// answerer answers a request: what is wrapped as data, and the status where the call succeeded.
type answerer func(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error)

// answer is what a request came to.
type answer struct {
	data   json.RawMessage
	status int  // 0: 200
	bare   bool // without an envelope: a document of its own
}

// routes are all paths of the face.
func (f *Face) routes(s *surface) []route {
	return []route{
		{pattern: "/api/v1/verbs/{verb}", methods: map[string]answerer{http.MethodPost: f.verb}},
		{pattern: "/api/v1/system/nodes/{id}/apply_template", methods: map[string]answerer{http.MethodPost: f.applyTemplate}},
		{pattern: "/api/v1/audit_logs", query: true, methods: map[string]answerer{http.MethodGet: f.auditLogs}},
		{pattern: "/api/v1/operations", query: true, methods: map[string]answerer{http.MethodGet: s.operations}},
		{pattern: "/api/v1/operations/{id}", methods: map[string]answerer{http.MethodGet: s.operation}},
		{pattern: "/api/v1/operations/{id}/approve", methods: map[string]answerer{http.MethodPost: s.approve}},
		{pattern: "/api/v1/operations/{id}/reject", methods: map[string]answerer{http.MethodPost: s.reject}},
		{pattern: "/api/v1/policies", methods: map[string]answerer{http.MethodGet: s.policies}},
		{pattern: "/api/v1/policies/{category}", query: true, methods: map[string]answerer{http.MethodGet: s.policy,
			http.MethodPut: withoutQuery(s.setPolicy), http.MethodDelete: withoutQuery(s.unsetPolicy)}},
		{pattern: "/api/v1/openapi.json", public: true, methods: map[string]answerer{http.MethodGet: f.openAPI()}},
		{pattern: "/api/v1/", methods: map[string]answerer{}},
	}
}

// Handler serves everything below /api/v1/.
func (f *Face) Handler() (http.Handler, error) {
	documents, err := readDocuments()
	if err != nil {
		return nil, err
	}
	if f.Places == nil {
		f.Places = &tools.Places{}
	}
	mux := http.NewServeMux()
	for _, each := range f.routes(&surface{platform: f.Platform, documents: documents}) {
		mux.HandleFunc(each.pattern, func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, each) })
	}
	return mux, nil
}

// refusal is an error with an HTTP status of its own, beside the code's.
type refusal struct {
	status int
	coded  *schema.Error
}

func (r refusal) Error() string { return r.coded.Message }
func (r refusal) Unwrap() error { return r.coded }

func refuse(status int, code schema.Code, format string, args ...any) error {
	return refusal{status, schema.Errorf(code, format, args...)}
}

// serve takes a request through credential and method to its answer.
func (f *Face) serve(w http.ResponseWriter, r *http.Request, to route) {
	var caller tools.Caller
	if !to.public {
		var err error
		if caller, err = f.caller(r); err != nil {
			f.write(w, answer{}, f.unauthenticated(w, err))
			return
		}
	}
	do, ok := to.methods[r.Method]
	switch {
	case len(to.methods) == 0:
		f.write(w, answer{}, schema.Errorf(schema.NotFound, "no such path: %s", schema.Printable(r.URL.Path)))
		return
	case !ok:
		allowed := make([]string, 0, len(to.methods))
		for method := range to.methods {
			allowed = append(allowed, method)
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		f.write(w, answer{}, refuse(http.StatusMethodNotAllowed, schema.InvalidArguments, "this path takes %s", strings.Join(allowed, ", ")))
		return
	}
	if !to.query {
		do = withoutQuery(do)
	}
	a, err := f.placed(do)(w, r, caller)
	f.write(w, a, err)
}

// placed works on a request when there is a place for its caller; what needs no credential takes none.
func (f *Face) placed(do answerer) answerer {
	return func(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
		if c.ID == "" {
			return do(w, r, c)
		}
		leave, ok := f.Places.Take(c)
		if !ok {
			w.Header().Set("Retry-After", "1")
			return answer{}, schema.Errorf(schema.Unavailable, "too many requests at once: nothing was changed")
		}
		defer leave()
		return do(w, r, c)
	}
}

// withoutQuery refuses a query where none is declared: what nobody reads must not look as if it had been taken.
func withoutQuery(do answerer) answerer {
	return func(w http.ResponseWriter, r *http.Request, c tools.Caller) (answer, error) {
		if r.URL.RawQuery != "" {
			return answer{}, schema.Errorf(schema.InvalidArguments, "this path takes no query")
		}
		return do(w, r, c)
	}
}

// caller is whose bearer token a request carries.
func (f *Face) caller(r *http.Request) (tools.Caller, error) {
	said := r.Header.Values("Authorization")
	if len(said) == 1 {
		scheme, token, ok := strings.Cut(said[0], " ")
		if token = strings.TrimSpace(token); ok && strings.EqualFold(scheme, "bearer") && token != "" {
			return f.Authenticate(r.Context(), token)
		}
	}
	return tools.Caller{}, governance.ErrNoCredential
}

// unauthenticated is what a request without a valid credential is told; a fault of ours stays one.
func (f *Face) unauthenticated(w http.ResponseWriter, err error) error {
	if !errors.Is(err, governance.ErrNoCredential) {
		return err
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="powernode"`)
	return refuse(http.StatusUnauthorized, schema.PermissionDenied, "a valid credential is required: Authorization: Bearer TOKEN")
}

// write sends the envelope of an answer.
func (f *Face) write(w http.ResponseWriter, a answer, err error) {
	if err == nil && a.bare {
		f.send(w, http.StatusOK, a.data)
		return
	}
	status := http.StatusOK
	if a.status != 0 {
		status = a.status
	}
	wrapped, fault := Wrap(a.data, err)
	if fault != nil {
		f.Log.Error().Err(fault).Msg("request failed")
		wrapped = Envelope{Error: schema.Errorf(schema.Internal, "internal error")}
	}
	var own refusal
	switch {
	case errors.As(err, &own):
		status = own.status
	case wrapped.Error != nil:
		status = wrapped.Error.Code.HTTPStatus()
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(wrapped); err != nil {
		f.Log.Error().Err(err).Msg("answer not encoded")
		status = http.StatusInternalServerError
		out.Reset()
		out.WriteString(`{"success":false,"error":{"code":"internal","message":"internal error","details":null,"hint":null,"retryable":false}}`)
	}
	f.send(w, status, out.Bytes())
}

func (f *Face) send(w http.ResponseWriter, status int, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	deadline(http.NewResponseController(w).SetWriteDeadline, answerWait)
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		f.Log.Debug().Err(err).Msg("answer not taken")
	}
}

// deadline sets one of a connection's; a writer that has none needs none.
func deadline(set func(time.Time) error, after time.Duration) {
	_ = set(time.Now().Add(after)) // a recorder of tests has none; a connection that can't has ended
}

// body reads a request's JSON as it came, bounded in size and time. Without a body it is empty.
func body(w http.ResponseWriter, r *http.Request) (json.RawMessage, error) {
	connection := http.NewResponseController(w)
	deadline(connection.SetReadDeadline, bodyWait)
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, schema.MaxArguments))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, refuse(http.StatusRequestEntityTooLarge, schema.InvalidArguments, "the body is larger than %d bytes", schema.MaxArguments)
	case err != nil:
		return nil, refuse(http.StatusBadRequest, schema.InvalidArguments, "the body did not arrive whole")
	}
	_ = connection.SetReadDeadline(time.Time{}) // as above
	if len(raw) == 0 && r.Header.Get("Content-Type") == "" {
		return raw, nil
	}
	return raw, isJSON(r.Header.Get("Content-Type"))
}

// isJSON refuses a body that says of itself that it is something else.
func isJSON(contentType string) error {
	kind, params, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	if err == nil && kind == "application/json" && (charset == "" || charset == "utf-8") {
		return nil
	}
	return refuse(http.StatusUnsupportedMediaType, schema.InvalidArguments, "the body must be application/json (got %s)", given(contentType))
}

func given(s string) string {
	if s == "" {
		return "none"
	}
	return schema.Printable(s)
}

// encoded is an answer that is a value of ours.
func encoded(v any, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return answer{}, fmt.Errorf("encode an answer: %w", err)
	}
	return answer{data: data}, nil
}
