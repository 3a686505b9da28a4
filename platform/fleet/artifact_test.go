package fleet_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/store"
)

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// serving makes an instance whose document names an artefact by URL, and answers it.
func (w *world) serving(t testing.TB, url, sha string) (i store.Instance) {
	t.Helper()
	n := w.node(t, "a")
	if err := w.assign(t, n, w.module(t, "k3s-server"), nil); err != nil {
		t.Fatal(err)
	}
	w.update(t, func(ctx context.Context, tx *store.Tx) error {
		in := fleet.VersionInput{ModuleID: w.module(t, "k3s-server").ID, Version: "own", MakeCurrent: true, Person: true,
			Artifacts: []store.VersionArtifact{{OS: "linux", Arch: "amd64", URL: url, SHA256: sha}}}
		_, _, err := w.CreateVersion(ctx, tx, w.acct, in)
		return err
	})
	return w.instance(t, n)
}

func TestArtefactIsFetchedOnceCheckedAndServedToWhoeverItsDocumentNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var fetched atomic.Int64
	origin := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		io.WriteString(rw, "the binary") // a reader that is gone fails the test by itself
	}))
	defer origin.Close()
	w.FetchClient = origin.Client()
	i := w.serving(t, origin.URL+"/k3s", digest("the binary"))

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			f, err := w.OpenArtifact(t.Context(), i, digest("the binary"))
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			if got, err := io.ReadAll(f); err != nil || string(got) != "the binary" {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
	all.Wait()
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times, want once", n)
	}
	info, err := os.Stat(filepath.Join(w.StateDir, "artifacts", digest("the binary")))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept with mode %v, %v", info.Mode(), err)
	}
	// A machine whose document does not name it gets nothing, though it is there.
	other := w.instance(t, w.node(t, "b"))
	for _, sha := range []string{digest("the binary"), digest("x"), "../ca.key.sealed"} {
		if _, err := w.OpenArtifact(t.Context(), other, sha); schema.CodeOf(err) != schema.NotFound {
			t.Errorf("%s: got %v, want not_found", sha, err)
		}
	}
}

func TestArtefactWithAnotherDigestIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	origin := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		io.WriteString(rw, "something else") // see above
	}))
	defer origin.Close()
	w.FetchClient = origin.Client()
	i := w.serving(t, origin.URL+"/k3s", digest("the binary"))
	_, err := w.OpenArtifact(t.Context(), i, digest("the binary"))
	if schema.CodeOf(err) != schema.PreconditionFailed || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("got %v, want a refusal that names the digest", err)
	}
	left, err := os.ReadDir(filepath.Join(w.StateDir, "artifacts"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestGuardedFetchReachesNoAddressOfThisHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var reached atomic.Bool
	origin := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer origin.Close()
	i := w.serving(t, origin.URL+"/k3s", digest("x"))
	if _, err := w.OpenArtifact(t.Context(), i, digest("x")); schema.CodeOf(err) != schema.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
	if reached.Load() {
		t.Error("the platform asked its own host")
	}
}

func TestImportKeepsAFileUnderItsBaseName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "k3s")
	if err := os.WriteFile(path, []byte("one"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"one", "two"} { // the second takes the name over
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		a, err := w.ImportArtifact(t.Context(), path)
		if err != nil || a.SHA256 != digest(content) || a.Name != "k3s" || a.SizeBytes != 3 {
			t.Errorf("kept %+v, %v", a, err)
		}
	}
	w.view(t, func(ctx context.Context, v *store.View) error {
		all, err := store.Artifacts(ctx, v)
		if len(all) != 1 || all[0].SHA256 != digest("two") {
			t.Errorf("the store has %+v", all)
		}
		return err
	})
	if _, err := w.ImportArtifact(t.Context(), t.TempDir()); schema.CodeOf(err) != schema.InvalidArguments {
		t.Errorf("a folder: %v", err)
	}
}

func TestAllowedHostMayHaveAPrivateAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := fleet.VersionInput{ModuleID: w.module(t, "k3s-server").ID, Version: "own",
		Artifacts: []store.VersionArtifact{{OS: "linux", Arch: "amd64", URL: "https://10.0.0.5/k3s", SHA256: digest("x")}}}
	check := func() (err error) {
		w.view(t, func(ctx context.Context, v *store.View) error {
			err = w.CheckCreateVersion(ctx, v, w.acct, in)
			return nil
		})
		return err
	}
	if err := check(); schema.CodeOf(err) != schema.InvalidArguments {
		t.Errorf("got %v, want invalid_arguments", err)
	}
	w.update(t, func(ctx context.Context, tx *store.Tx) error { return w.AllowArtifactHost(ctx, tx, "10.0.0.5") })
	if err := check(); err != nil {
		t.Errorf("an allowed host: %v", err)
	}
}
