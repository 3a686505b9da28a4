package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"
)

const (
	// defaultWait and maxWait bound the long poll for a document.
	defaultWait = 50 * time.Second
	maxWait     = 60 * time.Second

	bodyTimeout     = 30 * time.Second
	answerTimeout   = 30 * time.Second
	artifactTimeout = 30 * time.Minute
)

type server struct {
	backend Backend
	log     zerolog.Logger
}

// ServerTLS is the TLS of the agent API: 1.3, and a client certificate where the caller has one, which clientCAs signed for
// clients. Whether it is in its time is the backend's to say (Backend.Authenticate), because a machine whose instance has ended
// is told so whenever it comes back. A caller without a certificate gets as far as enrolment and the device bootstrap.
func ServerTLS(own tls.Certificate, clientCAs *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequestClientCert, ClientCAs: clientCAs,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			return verifySigner(s.PeerCertificates, clientCAs)
		}}
}

// verifySigner asks of who signed a client's certificate that it was theirs to sign some time of the certificate's life: at its
// begin, which lies before the CA's where the platform's clock was set back in between, or at its end.
func verifySigner(chain []*x509.Certificate, clientCAs *x509.CertPool) error {
	leaf, others := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	verify := func(at time.Time) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: clientCAs, Intermediates: others, CurrentTime: at,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	err := verify(leaf.NotBefore)
	if err != nil && verify(leaf.NotAfter) == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("verify the client's certificate: %w", err)
	}
	return nil
}

// NewServer serves the agent API: every route of BasePath and the device bootstrap. The caller does TLS, with ServerTLS.
func NewServer(backend Backend, log zerolog.Logger) http.Handler {
	s := &server{backend: backend, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+BasePath+"/enroll", s.open(s.enroll))
	mux.HandleFunc("POST "+BasePath+"/enroll/refresh", s.known(s.refresh, StandingReplaced))
	mux.HandleFunc("GET "+BasePath+"/node/desired", s.known(s.desired, StandingEnded))
	mux.HandleFunc("POST "+BasePath+"/node/report", s.known(s.report, StandingEnded))
	mux.HandleFunc("POST "+BasePath+"/runtime/handshake", s.known(s.handshake, StandingEnded))
	mux.HandleFunc("GET "+BasePath+"/runtime/{runtime}/config", s.known(s.runtimeConfig))
	mux.HandleFunc("GET "+BasePath+"/artifacts/{sha256}", s.known(s.artifact))
	mux.HandleFunc("POST "+DeviceBootstrapPath+"{token}", s.open(s.deviceBootstrap))
	mux.HandleFunc("GET "+DeviceBootstrapPath+"{token}", s.open(s.deviceBootstrapInfo))
	mux.HandleFunc("GET "+AgentProgramPath+"{sha256}", s.open(s.agentProgram))
	mux.HandleFunc("/", s.open(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, &Error{HTTPStatus: http.StatusNotFound, Code: "not_found", Message: "no such route in the agent API"}
	}))
	return mux
}

// handled says that a handler has written its answer itself.
type handled struct{}

// open wraps a handler for callers without a certificate: protocol version, deadlines, envelope, panics.
func (s *server) open(h func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer s.recover(w, r)
		setDeadlines(w, answerTimeout)
		w.Header().Set(ProtocolHeader, ProtocolVersion)
		if err := checkProtocol(r); err != nil {
			s.fail(w, r, err)
			return
		}
		data, err := h(w, r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if _, done := data.(handled); !done {
			s.succeed(w, r, data)
		}
	}
}

// errNoCredential refuses a certificate that is not good for what was asked.
var errNoCredential = &Error{HTTPStatus: http.StatusUnauthorized, Message: "no valid credential"}

// known wraps a handler for callers whose certificate the platform knows, in its time or of one of the other standings named.
func (s *server) known(h func(http.ResponseWriter, *http.Request, Identity) (any, error), others ...Standing) http.HandlerFunc {
	return s.open(func(w http.ResponseWriter, r *http.Request) (any, error) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return nil, &Error{HTTPStatus: http.StatusUnauthorized, Message: "no client certificate: enrol first"}
		}
		id, err := s.backend.Authenticate(r.Context(), r.TLS.PeerCertificates[0])
		if err != nil {
			return nil, err
		}
		if id.Standing != StandingCurrent && !slices.Contains(others, id.Standing) {
			return nil, errNoCredential
		}
		return h(w, r, id)
	})
}

// checkProtocol refuses a version that we do not speak. A person's browser at the device bootstrap names none.
func checkProtocol(r *http.Request) error {
	got := r.Header.Get(ProtocolHeader)
	if got == ProtocolVersion || (got == "" && !pathBelow(r.URL.Path, BasePath)) {
		return nil
	}
	return &Error{HTTPStatus: http.StatusUpgradeRequired, Code: "invalid_arguments",
		Message: fmt.Sprintf("%s must be %s, not %q", ProtocolHeader, ProtocolVersion, clip(got))}
}

func pathBelow(path, base string) bool {
	return len(path) > len(base) && path[:len(base)] == base && path[len(base)] == '/'
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func (s *server) enroll(w http.ResponseWriter, r *http.Request) (any, error) {
	in, err := readBody[EnrollRequest](w, r, maxEnrollBytes)
	if err != nil {
		return nil, err
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	return s.backend.Enroll(r.Context(), in)
}

func (s *server) refresh(w http.ResponseWriter, r *http.Request, id Identity) (any, error) {
	in, err := readBody[RefreshRequest](w, r, maxEnrollBytes)
	if err != nil {
		return nil, err
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	return s.backend.Refresh(r.Context(), id, in)
}

func (s *server) desired(w http.ResponseWriter, r *http.Request, id Identity) (any, error) {
	after, wait, err := pollParameters(r)
	if err != nil {
		return nil, err
	}
	setDeadlines(w, wait+answerTimeout)
	ctx, cancel := context.WithTimeout(r.Context(), wait+answerTimeout)
	defer cancel()
	doc, err := s.backend.Desired(ctx, id, after, r.URL.Query().Get("incarnation"), wait)
	if err != nil {
		return nil, err
	}
	if doc == nil {
		w.WriteHeader(http.StatusNoContent)
		return handled{}, nil
	}
	return doc, nil
}

func pollParameters(r *http.Request) (after int64, wait time.Duration, err error) {
	wait = defaultWait
	for key, values := range r.URL.Query() {
		if len(values) != 1 {
			return 0, 0, &FieldError{"/" + key, "given twice"}
		}
		switch key {
		case "after":
			if after, err = strconv.ParseInt(values[0], 10, 64); err != nil || after < 0 {
				return 0, 0, &FieldError{"/after", "must be a revision, 0 or above"}
			}
		case "wait":
			seconds, err := strconv.Atoi(values[0])
			if err != nil || seconds < 0 || time.Duration(seconds)*time.Second > maxWait {
				return 0, 0, &FieldError{"/wait", "must be 0..60"}
			}
			wait = time.Duration(seconds) * time.Second
		case "incarnation":
		default:
			return 0, 0, &FieldError{"/" + escapePointer(key), "undeclared parameter"}
		}
	}
	return after, wait, nil
}

func (s *server) report(w http.ResponseWriter, r *http.Request, id Identity) (any, error) {
	data, err := readRaw(w, r, maxReportBytes)
	if err != nil {
		return nil, err
	}
	in, err := DecodeReport(data)
	if err != nil {
		return nil, badMessage(err)
	}
	return s.backend.Report(r.Context(), id, in)
}

func (s *server) handshake(w http.ResponseWriter, r *http.Request, id Identity) (any, error) {
	in, err := readBody[HandshakeRequest](w, r, maxHandshakeBytes)
	if err != nil {
		return nil, err
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	if id.Standing == StandingEnded && in.Phase != PhaseStopped {
		return nil, errNoCredential
	}
	return s.backend.Handshake(r.Context(), id, in)
}

func (s *server) runtimeConfig(_ http.ResponseWriter, r *http.Request, id Identity) (any, error) {
	runtime := r.PathValue("runtime")
	if runtime != RuntimeK3sServer && runtime != RuntimeK3sAgent {
		return nil, &FieldError{"/runtime", "must be one of: k3s_server, k3s_agent"}
	}
	c, err := s.backend.RuntimeConfig(r.Context(), id, runtime)
	if err != nil {
		return nil, err
	}
	switch {
	case c.Server != nil && c.Agent == nil:
		return c.Server, nil
	case c.Agent != nil && c.Server == nil:
		return c.Agent, nil
	}
	return nil, errors.New("runtime configuration without one role")
}

func (s *server) artifact(w http.ResponseWriter, r *http.Request, id Identity) (any, error) {
	return serveBytes(w, r, func(sum string) (io.ReadSeekCloser, error) { return s.backend.Artifact(r.Context(), id, sum) })
}

func (s *server) agentProgram(w http.ResponseWriter, r *http.Request) (any, error) {
	return serveBytes(w, r, func(sum string) (io.ReadSeekCloser, error) { return s.backend.AgentProgram(r.Context(), sum) })
}

// serveBytes answers with what a SHA-256 names; ranges are supported.
func serveBytes(w http.ResponseWriter, r *http.Request, open func(sum string) (io.ReadSeekCloser, error)) (any, error) {
	sum := r.PathValue("sha256")
	if !validSHA256(sum) {
		return nil, &FieldError{"/sha256", "must be 64 lower-case hex digits"}
	}
	setDeadlines(w, artifactTimeout)
	f, err := open(sum)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+sum+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
	return handled{}, nil
}

func (s *server) deviceBootstrap(w http.ResponseWriter, r *http.Request) (any, error) {
	in, err := readBody[DeviceBootstrapRequest](w, r, maxDeviceBytes)
	if err != nil {
		return nil, err
	}
	return s.backend.DeviceBootstrap(r.Context(), r.PathValue("token"), in)
}

func (s *server) deviceBootstrapInfo(_ http.ResponseWriter, r *http.Request) (any, error) {
	text, err := s.backend.DeviceBootstrapInfo(r.Context(), r.PathValue("token"))
	if err != nil {
		return nil, err
	}
	return deviceInstructions{Instructions: text}, nil
}

// deviceInstructions says what to do with a bootstrap URL.
type deviceInstructions struct {
	Instructions string `json:"instructions"`
}

func readRaw(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(limit)))
	if err != nil {
		return nil, &Error{HTTPStatus: http.StatusBadRequest, Code: "invalid_arguments", Message: "read the message: " + err.Error()}
	}
	return data, nil
}

func readBody[T any](w http.ResponseWriter, r *http.Request, limit int) (T, error) {
	var none T
	data, err := readRaw(w, r, limit)
	if err != nil {
		return none, err
	}
	v, err := decode[T](data, limit)
	if err != nil {
		return none, badMessage(err)
	}
	return v, nil
}

// badMessage keeps a field error (422) and makes anything else HTTP 400.
func badMessage(err error) error {
	var field *FieldError
	if errors.As(err, &field) {
		return err
	}
	return &Error{HTTPStatus: http.StatusBadRequest, Code: "invalid_arguments", Message: err.Error()}
}

// envelope is every answer: data with success, else error.
type envelope[T any] struct {
	Success bool   `json:"success"`
	Data    *T     `json:"data,omitempty"`
	Error   *Error `json:"error,omitempty"`
}

func (s *server) succeed(w http.ResponseWriter, r *http.Request, data any) {
	body, err := encode(envelope[any]{Success: true, Data: &data}, maxDocumentBytes)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.write(w, r, http.StatusOK, body)
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := s.asError(r, err)
	body, err := encode(envelope[any]{Error: e}, maxAnswerBytes)
	if err != nil {
		s.log.Error().Err(err).Msg("encode an error of the agent API")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if e.HTTPStatus == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(max(e.RetryAfter, 1)))
	}
	s.write(w, r, e.HTTPStatus, body)
}

// asError gives every error its code and status; what has none is internal, logged, and the caller learns nothing.
func (s *server) asError(r *http.Request, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		c := *e
		if c.HTTPStatus == 0 {
			c.HTTPStatus = statusOf(c.Code)
		}
		return &c
	}
	var field *FieldError
	if errors.As(err, &field) {
		return &Error{HTTPStatus: http.StatusUnprocessableEntity, Code: "invalid_arguments", Message: field.Error()}
	}
	if r.Context().Err() == nil {
		s.log.Error().Err(err).Str("route", r.Pattern).Msg("agent API")
	}
	return &Error{HTTPStatus: http.StatusInternalServerError, Code: "internal", Message: "internal error", Retryable: true}
}

func statusOf(code string) int {
	switch code {
	case "invalid_arguments", "precondition_failed":
		return http.StatusUnprocessableEntity
	case "not_found":
		return http.StatusNotFound
	case "conflict":
		return http.StatusConflict
	case "permission_denied", "blocked_by_policy":
		return http.StatusForbidden
	case "unavailable":
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func (s *server) write(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil && r.Context().Err() == nil {
		s.log.Debug().Err(err).Msg("write an answer of the agent API")
	}
}

func (s *server) recover(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v)
	}
	s.log.Error().Interface("panic", v).Str("route", r.Pattern).Msg("agent API")
	s.fail(w, r, errors.New("panic in a handler"))
}

// setDeadlines bounds reading the message and writing the answer. A writer without deadlines (a test's recorder) is
// left as it is.
func setDeadlines(w http.ResponseWriter, answer time.Duration) {
	c := http.NewResponseController(w)
	now := time.Now()
	if err := c.SetReadDeadline(now.Add(max(bodyTimeout, answer))); err != nil {
		return
	}
	_ = c.SetWriteDeadline(now.Add(answer)) // a connection that took the read deadline takes this one
}
