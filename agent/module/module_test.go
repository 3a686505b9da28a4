package module

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"powernode/agent"
	"powernode/agent/service"
	"powernode/sdwan"
)

// web is a module with everything.
func web(content string) sdwan.Module {
	m := module("web", object{
		"files": []object{{"path": "/etc/web/site.conf", "content": content}, {"path": "/var/lib/web/deep/key", "mode": "0600", "content": "k"}},
		"services": []object{{"name": "httpd", "exec": "/bin/sleep", "args": []string{"1000"}, "env": object{"A": "b c"}},
			{"name": "once", "exec": "/bin/true", "restart": "never"}},
	})
	m.Artifact = &sdwan.Artifact{SHA256: helloSum}
	m.Config = json.RawMessage(`{"port":80}`)
	return m
}

func TestModuleIsPutInPlaceOnceAndTakenAwayWhole(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if h.reported() != nil {
		t.Error("before the first look nothing is measured")
	}
	m := web("a")
	h.reconcile(m)
	for path, want := range map[string]string{"/etc/web/site.conf": "a", "/var/lib/web/deep/key": "k", "/opt/web/bin/web": hello,
		"/etc/web/config.json": `{"port":80}` + "\n"} {
		if got := h.read(path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]os.FileMode{"/etc/web/site.conf": 0o644, "/var/lib/web/deep/key": 0o600, "/opt/web/bin/web": 0o755,
		"/etc/web/config.json": 0o600} {
		if info, err := os.Stat(filepath.Join(h.root, path)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	pid := h.pid("httpd")
	h.awaitStatus(unitPrefix+"once", "to have ended well", func(st service.Status) bool { return st.State == service.Ended })
	h.has(map[string]string{"web": m.Digest})
	h.quiet(m)
	h.restart()
	h.quiet(m)
	if now := h.pid("httpd"); now != pid {
		t.Errorf("another agent started the service again: %d, then %d", pid, now)
	}
	h.has(map[string]string{"web": m.Digest})
	h.reconcile()
	h.empty()
	if st := h.serviceState("httpd"); st != service.Absent {
		t.Errorf("the service is %s", st)
	}
	h.has(map[string]string{})
	h.quiet()
}

func TestUpdateChangesOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	version := func(conf string, extra ...object) sdwan.Module {
		return module("web", object{
			"files":    append([]object{{"path": "/etc/web/a", "content": "same"}, {"path": "/etc/web/b", "content": conf}}, extra...),
			"services": []object{{"name": "httpd", "exec": "/bin/sleep", "args": []string{"1000"}}},
		})
	}
	other := module("other", object{"services": []object{{"name": "other", "exec": "/bin/sleep", "args": []string{"1000"}}}})
	h.reconcile(version("1", object{"path": "/etc/web/old/c", "content": "x"}), other)
	pid, otherPID := h.pid("httpd"), h.pid("other")
	same, err := os.Stat(filepath.Join(h.root, "/etc/web/a"))
	if err != nil {
		t.Fatal(err)
	}
	h.reconcile(version("2"), other)
	if got := h.read("/etc/web/b"); got != "2" {
		t.Errorf("the changed file is %q", got)
	}
	if now, err := os.Stat(filepath.Join(h.root, "/etc/web/a")); err != nil || !os.SameFile(same, now) {
		t.Errorf("a file that did not change was written anew: %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.root, "/etc/web/old")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the new version has not is still there: %v", err)
	}
	h.awaitOther("httpd", pid)
	if now := h.pid("other"); now != otherPID {
		t.Error("a service of another module was started again")
	}
	// A service more: those that are stay.
	pid = h.pid("httpd")
	more := version("2")
	more.Manifest = json.RawMessage(strings.Replace(string(more.Manifest), `"services":[`, `"services":[{"name":"more","exec":"/bin/sleep","args":["1000"]},`, 1))
	more.Digest = "more"
	h.reconcile(more, other)
	h.pid("more")
	if now := h.pid("httpd"); now != pid {
		t.Error("a service that did not change was started again")
	}
	h.reconcile(version("2"), other)
	if st := h.serviceState("more"); st != service.Absent {
		t.Errorf("the service that is no more is %s", st)
	}
	if now := h.pid("httpd"); now != pid {
		t.Error("a service that did not change was started again")
	}
}

func TestConfigReachesItsServices(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	m := web("a")
	h.reconcile(m)
	pid := h.pid("httpd")
	m.Config = json.RawMessage(`{"port":81}`)
	h.reconcile(m)
	if got := h.read("/etc/web/config.json"); got != "{\"port\":81}\n" {
		t.Errorf("config is %q", got)
	}
	h.awaitOther("httpd", pid)
	m.Config = json.RawMessage(`{}`)
	h.reconcile(m)
	if _, err := os.Stat(filepath.Join(h.root, "/etc/web/config.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty config left its file: %v", err)
	}
}

func TestWhatWasChangedByHandIsToldAndThenPutRight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		hand func(t *testing.T, path string) error
	}{
		{"content", func(_ *testing.T, path string) error { return os.WriteFile(path, []byte("b"), 0o644) }},
		{"mode", func(_ *testing.T, path string) error { return os.Chmod(path, 0o4755) }},
		{"removed", func(_ *testing.T, path string) error { return os.Remove(path) }},
		{"a link in its place", func(t *testing.T, path string) error {
			elsewhere := filepath.Join(t.TempDir(), "elsewhere")
			t.Cleanup(func() {
				if b, err := os.ReadFile(elsewhere); err != nil || string(b) != "theirs" {
					t.Errorf("the link was followed: %q, %v", b, err)
				}
			})
			return errors.Join(os.WriteFile(elsewhere, []byte("theirs"), 0o600), os.Remove(path), os.Symlink(elsewhere, path))
		}},
		{"a pipe in its place", func(_ *testing.T, path string) error { return errors.Join(os.Remove(path), mkfifo(path)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			m, other := web("a"), module("other", object{"files": []object{{"path": "/etc/other/x", "content": "x"}}})
			h.reconcile(m, other)
			path := filepath.Join(h.root, "/etc/web/site.conf")
			if err := tt.hand(t, path); err != nil {
				t.Fatal(err)
			}
			var pending *agent.Pending
			if err := h.Reconcile(t.Context(), of(m, other)); !errors.As(err, &pending) || !strings.Contains(err.Error(), "web") {
				t.Fatalf("got %v, want that it is pending", err)
			}
			got := h.reported()
			if got["web"] == "" || got["web"] == m.Digest || got["other"] != other.Digest {
				t.Errorf("digests %v, want another one for web", got)
			}
			if err := h.Reconcile(t.Context(), of(m, other)); !errors.As(err, &pending) || h.reported()["web"] != got["web"] {
				t.Errorf("a look at once: %v, digests %v, want it told still", err, h.reported())
			}
			h.now = func() time.Time { return time.Now().Add(tellFirst) }
			h.reconcile(m, other)
			if now := h.read("/etc/web/site.conf"); now != "a" {
				t.Errorf("the file is %q", now)
			}
			h.has(map[string]string{"web": m.Digest, "other": other.Digest})
			h.quiet(m, other)

			if err := tt.hand(t, path); err != nil {
				t.Fatal(err)
			}
			result, err := h.RunTask(t.Context(), sdwan.Task{Parameters: json.RawMessage(`{"force_resync":true,"module_id":"web"}`)}, of(m, other))
			if err != nil || string(result) != `{"digests":{"web":"`+m.Digest+`"}}` {
				t.Errorf("a forced resync answers %s, %v", result, err)
			}
			if now := h.read("/etc/web/site.conf"); now != "a" {
				t.Errorf("after a forced resync the file is %q", now)
			}
		})
	}
}

func TestTaskOfAnOlderDocumentUndoesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	older, newer := of(), of(web("a"))
	older.Revision, newer.Revision = 1, 2
	if err := h.Reconcile(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	if _, err := h.RunTask(t.Context(), sdwan.Task{}, older); err != nil {
		t.Fatal(err)
	}
	h.pid("httpd")
}

func TestOneModulesTroubleHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	one := func(path, mode string) object {
		return object{"files": []object{{"path": path, "mode": mode, "content": "x"}}}
	}
	for _, tt := range []struct {
		name     string
		bad      sdwan.Module
		says     string
		nothings []string
	}{
		{"a file below ssh's folder", module("ssh", one("/etc/ssh/sshd_config", "")), "module ssh: file path refused: it is below /etc/ssh", []string{"/etc/ssh"}},
		{"a file that climbs out", module("bad", one("/etc/bad/../ssh/x", "")), "module bad: file path refused: it must be clean", []string{"/etc/ssh"}},
		{"another module's folder", module("bad", one("/etc/good2/x", "")), "module bad: file path refused", []string{"/etc/good2"}},
		{"the agent's folder", module("powernode-agent", one("/var/lib/powernode-agent/x", "")), "file path refused: it is the agent's", []string{"/var"}},
		{"a file with setuid", module("bad", one("/etc/bad/x", "4755")), "module bad: mode must be three octal digits", []string{"/etc/bad"}},
		{"a key that is none", module("bad", object{"sudoers": "x"}), `module bad: read the manifest: json: unknown field "sudoers"`, nil},
		{"a service through a shell", module("bad", object{"services": []object{{"name": "x", "exec": "sh -c true"}}}),
			"module bad: service x must be an argument vector", nil},
		{"packages without a package manager", module("bad", object{"packages": []string{"jq"}, "files": []object{{"path": "/etc/bad/x", "content": "x"}}}),
			"module bad: it needs packages, and this machine has no package manager", []string{"/etc/bad"}},
		{"an artefact that is not there", sdwan.Module{ModuleID: "bad", Name: "bad", Digest: "d", Artifact: &sdwan.Artifact{SHA256: strings.Repeat("b", 64)},
			Manifest: json.RawMessage(`{"files":[{"path":"/etc/bad/x","content":"x"}]}`)},
			"module bad: fetch the artefact bbbbbbbbbbbb: no such artefact", []string{"/etc/bad", "/opt"}},
		{"a service that another module has", module("bad", object{"services": []object{{"name": "good", "exec": "/bin/sleep", "args": []string{"9"}}}}),
			"module bad: service good: another module of this machine has it", nil},
		{"a program that is not there", module("bad", object{"services": []object{{"name": "bad", "exec": "/no/such/program"}}}),
			"module bad: service bad does not run: start the service", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			good := module("good", object{"services": []object{{"name": "good", "exec": "/bin/sleep", "args": []string{"1000"}}}})
			good2 := module("z", object{"files": []object{{"path": "/srv/z/x", "content": "x"}}})
			h.refused(tt.says, good, tt.bad, good2)
			got := h.reported()
			if got["good"] != good.Digest || got["z"] != good2.Digest {
				t.Errorf("digests %v, want those of the others", got)
			}
			h.pid("good")
			for _, path := range tt.nothings {
				if _, err := os.Lstat(filepath.Join(h.root, path)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is there: %v", path, err)
				}
			}
			h.reconcile()
			h.empty()
		})
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	outside := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(h.root, "etc"), 0o755), os.Symlink(outside, filepath.Join(h.root, "etc/web"))); err != nil {
		t.Fatal(err)
	}
	h.refused("module web: /etc/web/site.conf: open /etc/web at \"web\": a link, or what is no folder, is in the way", web("a"))
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("written behind the link: %v, %v", left, err)
	}
	// What is behind a link that came later is not ours to take away.
	if err := os.Remove(filepath.Join(h.root, "etc/web")); err != nil {
		t.Fatal(err)
	}
	h.reconcile(web("a"))
	theirs := filepath.Join(outside, "site.conf")
	if err := errors.Join(os.WriteFile(theirs, []byte("theirs"), 0o600), os.RemoveAll(filepath.Join(h.root, "etc/web")),
		os.Symlink(outside, filepath.Join(h.root, "etc/web"))); err != nil {
		t.Fatal(err)
	}
	h.reconcile()
	if b, err := os.ReadFile(theirs); err != nil || string(b) != "theirs" {
		t.Errorf("taken away behind the link: %q, %v", b, err)
	}
}

func TestWhatOthersPutIntoAModulesFolderStays(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.reconcile(web("a"))
	theirs := filepath.Join(h.root, "/etc/web/theirs")
	if err := os.WriteFile(theirs, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.reconcile()
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(h.root, "/etc/web/site.conf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ours is still there: %v", err)
	}
	if err := os.Remove(theirs); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableJournalStopsEverything(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.reconcile(web("a"))
	path := filepath.Join(h.state, "modules.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	h.refused("read what was placed")
	h.pid("httpd")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A kill leaves any of these behind; the next agent finishes it, or takes all of it away.
func TestCutOffChangeIsFinishedOrTakenAway(t *testing.T) {
	t.Parallel()
	for _, finish := range []struct {
		name string
		want []sdwan.Module
	}{{"finished", []sdwan.Module{web("b")}}, {"taken away", nil}} {
		for _, cut := range []struct {
			name string
			do   func(h *host, p *pass, w wanted, d deviations) error
		}{
			{"announced", func(h *host, p *pass, w wanted, d deviations) error {
				_, _, err := p.announce(w, d)
				return err
			}},
			{"half written", func(h *host, p *pass, w wanted, d deviations) error {
				_, _, err := p.announce(w, d)
				return errors.Join(err, h.disk.write(d.files[0]), os.WriteFile(filepath.Join(h.root, "etc/web/"+tempName("site.conf")), []byte("hal"), 0o600))
			}},
		} {
			t.Run(cut.name+" and then "+finish.name, func(t *testing.T) {
				t.Parallel()
				h := newHost(t)
				h.reconcile(web("a"))
				pid := h.pid("httpd")
				j, err := readJournal(h.journalPath())
				if err != nil {
					t.Fatal(err)
				}
				p := &pass{s: h.Subsystem, j: j, out: &outcome{failed: map[string]error{}}, owner: map[string]string{}}
				w, err := h.Subsystem.read(web("b"))
				if err != nil {
					t.Fatal(err)
				}
				d, err := p.observe(t.Context(), w)
				if err == nil {
					err = cut.do(h, p, w, d)
				}
				if err != nil {
					t.Fatal(err)
				}
				h.restart()
				h.reconcile(finish.want...)
				if finish.want == nil {
					h.empty()
					return
				}
				if got := h.read("/etc/web/site.conf"); got != "b" {
					t.Errorf("the file is %q", got)
				}
				h.awaitOther("httpd", pid) // which ran with the file of before
				h.quiet(finish.want...)
			})
		}
	}
}

func TestK3sArtefactIsAnothersWork(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	m := sdwan.Module{ModuleID: "k3s", Name: "k3s-server", Digest: "d3", Artifact: &sdwan.Artifact{SHA256: strings.Repeat("a", 64)},
		Config: json.RawMessage(`{"node_labels":{"a":"b"}}`)}
	var pending *agent.Pending
	if err := h.Reconcile(t.Context(), of(m)); !errors.As(err, &pending) || !strings.Contains(err.Error(), "k3s-server") {
		t.Fatalf("got %v", err)
	}
	h.has(map[string]string{})
	h.k3sIn = true
	h.reconcile(m)
	h.has(map[string]string{"k3s": "d3"})
	h.empty()
}

func TestArtefactThatIsInPlaceIsNotFetchedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	m := web("a")
	h.reconcile(m)
	h.restart()
	h.reconcile(m)
	if h.platform.fetched != 1 {
		t.Errorf("fetched %d times", h.platform.fetched)
	}
	for _, path := range []string{filepath.Join(h.root, "/opt/web/bin/web"), filepath.Join(h.state, "modules", helloSum)} {
		if err := os.WriteFile(path, []byte("jello"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.RunTask(t.Context(), sdwan.Task{Parameters: json.RawMessage(`{"force_resync":true}`)}, of(m)); err != nil {
		t.Fatal(err)
	}
	if got := h.read("/opt/web/bin/web"); got != hello || h.platform.fetched != 2 {
		t.Errorf("the artefact is %q, fetched %d times", got, h.platform.fetched)
	}
	h.reconcile()
	if left, err := os.ReadDir(filepath.Join(h.state, "modules")); err != nil || len(left) != 0 {
		t.Errorf("left %v %v", left, err)
	}
}
