package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

const (
	artifactsFolder = "artifacts"
	// maxArtifact and fetchDeadline bound what is fetched by URL.
	maxArtifact   = 1 << 30
	fetchDeadline = 15 * time.Minute
	maxRedirects  = 5
)

var (
	shaPattern  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)
)

// ImportArtifact puts a file into the platform's artefact store, under its base name.
func (s *Service) ImportArtifact(ctx context.Context, path string) (store.Artifact, error) {
	name := filepath.Base(path)
	if !namePattern.MatchString(name) {
		return store.Artifact{}, schema.Errorf(schema.InvalidArguments, "a file of the artefact store is named by letters, digits, dot, plus, hyphen and underscore")
	}
	// Not waiting on what is no plain file, whatever the path names by now.
	source, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return store.Artifact{}, fmt.Errorf("open the artefact: %w", err)
	}
	defer source.Close()
	if info, err := source.Stat(); err != nil || !info.Mode().IsRegular() {
		return store.Artifact{}, schema.Errorf(schema.InvalidArguments, "%s is no plain file", name)
	}
	sum, size, err := s.keep(source, "")
	if err != nil {
		return store.Artifact{}, err
	}
	a := store.Artifact{SHA256: sum, Name: name, SizeBytes: size}
	err = s.DB.Update(ctx, func(tx *store.Tx) error {
		var err error
		a, err = s.AddArtifact(ctx, tx, name, sum, size)
		return err
	})
	return a, err
}

// AddArtifact records a file that lies in the artefact store already.
func (s *Service) AddArtifact(ctx context.Context, tx *store.Tx, name, sha256 string, size int64) (store.Artifact, error) {
	a, err := store.PutArtifact(ctx, tx, store.Artifact{SHA256: sha256, Name: name, SizeBytes: size})
	if err != nil {
		return a, err
	}
	return a, audit(ctx, tx, "", "created", resourceArtifact, sha256, nil, store.Object{"name": name, "sha256": sha256, "size_bytes": size})
}

// AllowArtifactHost is the operator's word that artefact URLs may name a host whose addresses are not public.
func (s *Service) AllowArtifactHost(ctx context.Context, tx *store.Tx, host string) error {
	host = strings.ToLower(strings.TrimSpace(host))
	if host == "" || strings.ContainsAny(host, "/@ ") {
		return schema.Errorf(schema.InvalidArguments, "a host is a name or an address, without scheme and path")
	}
	if err := store.AllowArtifactHost(ctx, tx, host); err != nil {
		return err
	}
	return audit(ctx, tx, "", "updated", resourceArtifact, host, nil, store.Object{"allowed_host": host})
}

// keep copies a stream into the artefact store and answers its SHA-256; want, where not empty, must be it.
func (s *Service) keep(source io.Reader, want string) (sum string, size int64, err error) {
	dir := filepath.Join(s.StateDir, artifactsFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", 0, fmt.Errorf("make the artefact store: %w", err)
	}
	f, err := os.CreateTemp(dir, ".incoming-*") // 0600
	if err != nil {
		return "", 0, fmt.Errorf("keep an artefact: %w", err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing left of it
	h := sha256.New()
	size, err = io.Copy(io.MultiWriter(f, h), io.LimitReader(source, maxArtifact+1))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return "", 0, fmt.Errorf("keep an artefact: %w", err)
	}
	sum = hex.EncodeToString(h.Sum(nil))
	switch {
	case size > maxArtifact:
		return "", 0, schema.Errorf(schema.InvalidArguments, "an artefact has at most %d MiB", maxArtifact>>20)
	case want != "" && sum != want:
		return "", 0, schema.Errorf(schema.PreconditionFailed, "the artefact's SHA-256 is %s, not %s: it is not kept", sum, want)
	}
	if err := os.Rename(f.Name(), s.artifactFile(sum)); err != nil {
		return "", 0, fmt.Errorf("keep an artefact: %w", err)
	}
	return sum, size, nil
}

func (s *Service) artifactFile(sha256 string) string {
	return filepath.Join(s.StateDir, artifactsFolder, sha256)
}

// OpenArtifact opens the bytes of an artefact that the instance's document names; others do not exist for it. One that a
// version names by URL is fetched when it is first asked for. It reaches outside: call it in no transaction.
func (s *Service) OpenArtifact(ctx context.Context, instance store.Instance, sha256 string) (io.ReadSeekCloser, error) {
	notNamed := schema.Errorf(schema.NotFound, "artefact not found")
	if !shaPattern.MatchString(sha256) {
		return nil, notNamed
	}
	var source store.VersionArtifact
	err := s.DB.View(ctx, func(v *store.View) error {
		document, err := s.Document(ctx, v, instance)
		if err != nil {
			return err
		}
		if !names(document, sha256) {
			return notNamed
		}
		source, err = artifactSource(ctx, v, instance.AccountID, sha256)
		return err
	})
	if errors.Is(err, store.ErrNoRow) {
		return nil, notNamed
	}
	if err != nil {
		return nil, err
	}
	if err := s.EnsureArtifact(ctx, source); err != nil {
		return nil, err
	}
	f, err := os.Open(s.artifactFile(sha256))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notNamed
	}
	if err != nil {
		return nil, fmt.Errorf("open an artefact: %w", err)
	}
	return f, nil
}

// artifactSource finds where the bytes of a hash come from: any version of the account that names it.
func artifactSource(ctx context.Context, v *store.View, acct store.AccountID, sha256 string) (store.VersionArtifact, error) {
	modules, err := store.Modules(ctx, v, acct)
	if err != nil {
		return store.VersionArtifact{}, err
	}
	for _, m := range modules {
		versions, err := store.ModuleVersions(ctx, v, acct, m.ID)
		if err != nil {
			return store.VersionArtifact{}, err
		}
		for _, version := range versions {
			for _, a := range version.Artifacts.V {
				if a.SHA256 == sha256 && version.Released() {
					return a, nil
				}
			}
		}
	}
	return store.VersionArtifact{}, store.ErrNoRow
}

// EnsureArtifact has the bytes of an artefact in the platform's store afterwards, fetching them once where they come
// from a URL, however many ask.
func (s *Service) EnsureArtifact(ctx context.Context, a store.VersionArtifact) error {
	if _, err := os.Stat(s.artifactFile(a.SHA256)); err == nil || a.URL == "" {
		return nil
	}
	fetched := s.fetches.DoChan(a.SHA256, func() (any, error) {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchDeadline)
		defer cancel()
		return nil, s.fetch(bounded, a)
	})
	select {
	case done := <-fetched:
		return done.Err
	case <-ctx.Done():
		return schema.Errorf(schema.Unavailable, "the artefact is being fetched")
	}
}

func (s *Service) fetch(ctx context.Context, a store.VersionArtifact) error {
	began := time.Now()
	client := s.FetchClient
	if client == nil {
		client = s.guardedClient()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
	if err != nil {
		return fmt.Errorf("fetch an artefact: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		s.Log.Warn().Err(err).Str("sha256", a.SHA256).Msg("artefact not fetched")
		return schema.Errorf(schema.Unavailable, "the artefact's URL did not answer")
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return schema.Errorf(schema.Unavailable, "the artefact's URL answered with status %d", answer.StatusCode)
	}
	_, size, err := s.keep(answer.Body, a.SHA256)
	if err != nil {
		return err
	}
	s.Log.Info().Str("sha256", a.SHA256).Int64("bytes", size).Dur("took", time.Since(began)).Msg("artefact fetched")
	return nil
}

// guardedClient speaks https alone, and only to public addresses or hosts that the operator allows; both are looked at
// again at every redirect, and the address is the one that is really dialled.
func (s *Service) guardedClient() *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		allowed, err := s.hostAllowed(ctx, host)
		if err != nil {
			return nil, err
		}
		d := &net.Dialer{Timeout: 20 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if !allowed && !sdwan.PublicAddress(ap.Addr()) {
				return errors.New("the artefact's host has an address that is not public")
			}
			return nil
		}}
		return d.DialContext(ctx, network, address)
	}
	return &http.Client{
		Transport: &http.Transport{DialContext: dial, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 20 * time.Second,
			ResponseHeaderTimeout: time.Minute, DisableKeepAlives: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > maxRedirects {
				return errors.New("an artefact is not redirected away from https, and not for ever")
			}
			return nil
		},
	}
}

func (s *Service) hostAllowed(ctx context.Context, host string) (allowed bool, err error) {
	err = s.DB.View(ctx, func(v *store.View) error {
		allowed, err = store.ArtifactHostAllowed(ctx, v, strings.ToLower(host))
		return err
	})
	return allowed, err
}

// checkArtifactURL refuses a URL that could not be fetched by the rules. Names are looked at when they are dialled.
func checkArtifactURL(ctx context.Context, v *store.View, pointer, raw string) error {
	refuse := func(why string) error {
		return schema.InvalidArgument(pointer, schema.Printable(raw), "artefact URL refused: %s", why)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return refuse("it does not parse")
	case u.Scheme != "https":
		return refuse("it must be https")
	case u.Hostname() == "":
		return refuse("it names no host")
	case u.User != nil:
		return refuse("it must carry no credential")
	case u.Fragment != "":
		return refuse("it must have no fragment")
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	allowed, err := store.ArtifactHostAllowed(ctx, v, host)
	if err != nil || allowed {
		return err
	}
	if a, err := netip.ParseAddr(host); err == nil && !sdwan.PublicAddress(a) {
		return refuse("its address is not public, and the operator has not allowed the host")
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".local") ||
		strings.HasSuffix(host, ".internal") || numericHost.MatchString(host) {
		return refuse("its host is not a public name, and the operator has not allowed it")
	}
	return nil
}

// numericHost is an IPv4 address in one of the spellings that only some resolvers take.
var numericHost = regexp.MustCompile(`^(0x[0-9a-f]+|[0-9]+)(\.(0x[0-9a-f]+|[0-9]+))*$`)
