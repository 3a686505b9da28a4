package artifact

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
	"sync"
	"syscall"
	"time"

	"powernode/agent/atomicfile"
	"powernode/sdwan"
)

const (
	maxBytes     = 2 << 30
	fetchTimeout = 25 * time.Minute
)

// Platform serves artefacts; *nodeapi.Client satisfies it.
type Platform interface {
	Artifact(ctx context.Context, sum string, offset int64, w io.Writer) (int64, error)
}

// Store keeps fetched artefacts in a directory, a file named by its SHA-256 each. Safe for several goroutines.
type Store struct {
	dir      string
	platform func() (Platform, error)
	web      *http.Client

	mu    sync.Mutex // one fetch at a time: the disk and the line are shared
	sums  sync.Mutex
	known map[string]fingerprint
}

// fingerprint tells whether a file is the one that was summed before.
type fingerprint struct {
	size  int64
	mtime time.Time
	inode uint64
	sum   string
}

// NewStore makes a store; platform answers an error while there is no connection.
func NewStore(dir string, platform func() (Platform, error)) *Store {
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, Control: refuseInside}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		Proxy:                 http.ProxyFromEnvironment,
	}
	return &Store{dir: dir, platform: platform, known: map[string]fingerprint{},
		web: &http.Client{Transport: t, Timeout: fetchTimeout, CheckRedirect: httpsOnly}}
}

// Path is where an artefact is, or will be.
func (s *Store) Path(sum string) string { return filepath.Join(s.dir, sum) }

// Fetch answers the path of an artefact whose SHA-256 has been checked.
func (s *Store) Fetch(ctx context.Context, a sdwan.Artifact) (string, error) {
	if b, err := hex.DecodeString(a.SHA256); err != nil || len(b) != sha256.Size {
		return "", fmt.Errorf("artefact with the SHA-256 %q", a.SHA256)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := s.Path(a.SHA256)
	if sum, err := s.Sum(path); err == nil && sum == a.SHA256 {
		return path, nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", fmt.Errorf("make the artefacts' directory: %w", err)
	}
	part := path + ".part"
	if err := s.fill(ctx, a, part); err != nil {
		return "", fmt.Errorf("fetch the artefact %.12s: %w", a.SHA256, err)
	}
	sum, err := s.Sum(part)
	if err != nil {
		return "", err
	}
	if sum != a.SHA256 {
		_ = os.Remove(part) // the next fetch starts anew
		return "", fmt.Errorf("the artefact has SHA-256 %s, pinned is %s", sum, a.SHA256)
	}
	if err := os.Rename(part, path); err != nil {
		return "", fmt.Errorf("keep the artefact: %w", err)
	}
	return path, nil
}

// fill completes the partial file, from the platform where it has the artefact, otherwise from its URL.
func (s *Store) fill(ctx context.Context, a sdwan.Artifact, part string) error {
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if a.Path != "" || a.URL == "" {
		err = s.fromPlatform(ctx, a.SHA256, f)
		if err == nil || a.URL == "" {
			return errors.Join(err, f.Sync())
		}
	}
	return errors.Join(s.fromWeb(ctx, a.URL, f), f.Sync())
}

func (s *Store) fromPlatform(ctx context.Context, sum string, f *os.File) error {
	p, err := s.platform()
	if err != nil {
		return err
	}
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if at > 0 {
		if _, err = p.Artifact(ctx, sum, at, f); err == nil {
			return nil
		}
		// Complete already, or the platform takes no range: from the start.
		if err := restart(f); err != nil {
			return err
		}
	}
	_, err = p.Artifact(ctx, sum, 0, f)
	return err
}

func restart(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

func (s *Store) fromWeb(ctx context.Context, raw string, f *os.File) error {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return errors.New("the artefact's URL is not https")
	}
	if err := restart(f); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
	if err != nil {
		return err
	}
	res, err := s.web.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered HTTP %d", u.Host, res.StatusCode)
	}
	n, err := io.Copy(f, io.LimitReader(res.Body, maxBytes+1))
	if err != nil {
		return err
	}
	if n > maxBytes {
		return fmt.Errorf("more than %d bytes", int64(maxBytes))
	}
	return nil
}

// Sum answers a file's SHA-256 and remembers it for as long as the file is the same.
func (s *Store) Sum(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	now := fingerprint{size: info.Size(), mtime: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		now.inode = st.Ino
	}
	s.sums.Lock()
	defer s.sums.Unlock()
	if k, ok := s.known[path]; ok && k.size == now.size && k.mtime.Equal(now.mtime) && k.inode == now.inode {
		return k.sum, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	now.sum = hex.EncodeToString(h.Sum(nil))
	s.known[path] = now
	return now.sum, nil
}

// Forget makes the next Sum of every file read it again.
func (s *Store) Forget() {
	s.sums.Lock()
	defer s.sums.Unlock()
	clear(s.known)
}

// Keep removes every artefact, also partial ones, but those named.
func (s *Store) Keep(sums map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list artefacts: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if sums[name] || sums[trimPart(name)] {
			continue
		}
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an artefact: %w", err)
		}
	}
	return nil
}

func trimPart(name string) string {
	if filepath.Ext(name) == ".part" {
		return name[:len(name)-len(".part")]
	}
	return name
}

// Place copies a checked artefact to where it is used, under its name only when whole. One place is one caller's at a time.
func Place(from, to string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("place %s: %w", to, err)
	}
	if err := atomicfile.RemoveLeftovers(to); err != nil { // a program is large
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("place %s: %w", to, err)
	}
	defer in.Close()
	return atomicfile.Copy(to, in, mode)
}

func httpsOnly(req *http.Request, via []*http.Request) error {
	if req.URL.Scheme != "https" {
		return errors.New("redirected away from https")
	}
	if len(via) > 10 {
		return errors.New("redirected too often")
	}
	return nil
}

// refuseInside keeps a URL from reaching what only this machine can: it is asked with each address before it is
// connected to, after names have been resolved.
func refuseInside(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if a := ap.Addr().Unmap(); !sdwan.PublicAddress(a) {
		return fmt.Errorf("%s is no public address", a)
	}
	return nil
}
