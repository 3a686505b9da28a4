package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"powernode/sdwan"
)

// source is a platform that serves one artefact, from any byte on.
type source struct {
	data    []byte
	cut     int // bytes after which the first answer ends
	offsets []int64
}

func (s *source) Artifact(_ context.Context, _ string, offset int64, w io.Writer) (int64, error) {
	s.offsets = append(s.offsets, offset)
	rest := s.data[offset:]
	if s.cut > 0 {
		rest = rest[:s.cut]
		s.cut = 0
		n, _ := w.Write(rest)
		return int64(n), errors.New("the line is dead")
	}
	n, err := w.Write(rest)
	return int64(n), err
}

func store(t *testing.T, src Platform) *Store {
	t.Helper()
	return NewStore(filepath.Join(t.TempDir(), "artefacts"), func() (Platform, error) {
		if src == nil {
			return nil, errors.New("no platform")
		}
		return src, nil
	})
}

func sumOf(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func TestFetchGoesOnWhereItWasCutOff(t *testing.T) {
	t.Parallel()
	src := &source{data: bytes.Repeat([]byte("abcdefgh"), 5000), cut: 12345}
	s := store(t, src)
	a := sdwan.Artifact{SHA256: sumOf(src.data), Path: "/artifacts/x"}
	if _, err := s.Fetch(t.Context(), a); err == nil {
		t.Fatal("half an artefact was taken")
	}
	if _, err := os.Stat(s.Path(a.SHA256)); !os.IsNotExist(err) {
		t.Errorf("it has its name already: %v", err)
	}
	path, err := s.Fetch(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, src.data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := s.Fetch(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if len(src.offsets) != 2 || src.offsets[1] != 12345 {
		t.Errorf("asked from %v", src.offsets)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

func TestFetchRefusesOtherBytes(t *testing.T) {
	t.Parallel()
	src := &source{data: []byte("evil")}
	s := store(t, src)
	want := sumOf([]byte("good"))
	for range 2 {
		if _, err := s.Fetch(t.Context(), sdwan.Artifact{SHA256: want}); err == nil || !strings.Contains(err.Error(), "pinned is "+want) {
			t.Errorf("got %v", err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(s.Path(want))); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := s.Fetch(t.Context(), sdwan.Artifact{SHA256: "../../etc/passwd"}); err == nil {
		t.Error("a path was taken for a SHA-256")
	}
}

func TestFetchFromAURLSpeaksHTTPSToPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	asked := false
	web := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	t.Cleanup(web.Close)
	for _, tt := range []struct{ url, says string }{
		{web.URL, "127.0.0.1 is no public address"},
		{"http://example.com/k3s", "not https"},
		{"file:///etc/passwd", "not https"},
	} {
		s := store(t, nil)
		s.web.Transport.(*http.Transport).Proxy = nil // the test's own host is asked, whatever proxy there is
		_, err := s.Fetch(t.Context(), sdwan.Artifact{SHA256: sumOf(nil), URL: tt.url})
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v", tt.url, err)
		}
	}
	if asked {
		t.Error("the loopback address was asked")
	}
}

func TestSumSeesAChangedFile(t *testing.T) {
	t.Parallel()
	s := store(t, nil)
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "three"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Sum(path); err != nil || got != sumOf([]byte(text)) {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

func TestKeepRemovesWhatNobodyNames(t *testing.T) {
	t.Parallel()
	s := store(t, nil)
	dir := filepath.Dir(s.Path("x"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a.part", "b", "b.part"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Keep(map[string]bool{"a": true}); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "a" {
		t.Errorf("left %v", left)
	}
}
