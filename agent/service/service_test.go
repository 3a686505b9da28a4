package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// TestMain lets the test's binary be the agent's: supervisors are processes of their own.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "supervise" {
		if err := Supervise(context.Background(), os.Args[5], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newSupervised(t *testing.T) *supervised {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	return &supervised{o: Options{StateDir: state, AgentBinary: bin, Log: zerolog.Nop()}, dir: filepath.Join(state, "services")}
}

// shell is a unit that runs a script; it is the test's service, the product has no shell.
func shell(t *testing.T, m *supervised, name, script string) Unit {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Stop(context.Background(), name); err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
	})
	return Unit{Name: name, Exec: []string{"/bin/sh", "-c", script}, RestartSeconds: 1, LogFile: filepath.Join(t.TempDir(), "log")}
}

func ensure(t *testing.T, m *supervised, u Unit) Status {
	t.Helper()
	if err := m.Ensure(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	return awaitStatus(t, m, u.Name, "running", func(s Status) bool { return s.State == Running && s.PID > 0 })
}

func awaitStatus(t *testing.T, m *supervised, name, what string, fits func(Status) bool) Status {
	t.Helper()
	var st Status
	err := await(t.Context(), 20*time.Second, what, func() (bool, error) {
		var err error
		st, err = m.Status(t.Context(), name)
		return fits(st), err
	})
	if err != nil {
		t.Fatalf("%v; it is %+v", err, st)
	}
	return st
}

// pids reads the process numbers that a script wrote, once there are that many.
func pids(t *testing.T, path string, n int) []int {
	t.Helper()
	var out []int
	err := await(t.Context(), 20*time.Second, "process numbers", func() (bool, error) {
		b, err := os.ReadFile(path)
		if err != nil {
			return false, nil
		}
		out = nil
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return false, err
			}
			out = append(out, pid)
		}
		return len(out) >= n, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func lives(pid int) bool {
	p, err := look(pid)
	return err == nil && p.alive()
}

func TestEnsureTwiceStartsOnce(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	u := shell(t, m, "once", "exec sleep 1000")
	first := ensure(t, m, u)
	second := ensure(t, m, u)
	if first.PID != second.PID || second.Restarts != 0 {
		t.Errorf("first %+v, then %+v", first, second)
	}
	u.Exec[2] = "exec sleep 1001"
	if changed := ensure(t, m, u); changed.PID == first.PID || lives(first.PID) {
		t.Errorf("a changed unit still runs as %+v", changed)
	}
}

func TestStopEndsEverythingThatTheServiceStarted(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	list := filepath.Join(t.TempDir(), "pids")
	script := strings.ReplaceAll(`trap '' TERM; echo $$ >>LIST; setsid sh -c 'echo $$ >>LIST; exec sleep 1000' & `+
		`(setsid sh -c 'trap "" TERM; echo $$ >>LIST; while :; do sleep 1000; done' &); while :; do sleep 1000; done`, "LIST", list)
	u := shell(t, m, "tree", script)
	u.StopSeconds = 1
	ensure(t, m, u)
	all := pids(t, list, 3)
	rec, err := readRecord(m.path("tree"))
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, rec.Supervisor.PID)
	if err := m.Stop(t.Context(), "tree"); err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		if lives(pid) {
			t.Errorf("process %d of %v lives", pid, all)
		}
	}
	if rec.Cgroup != "" {
		if _, err := os.Stat(rec.Cgroup); !os.IsNotExist(err) {
			t.Errorf("cgroup %s is still there: %v", rec.Cgroup, err)
		}
	}
	if _, err := os.Stat(m.dir); !os.IsNotExist(err) {
		t.Errorf("files are left: %v", err)
	}
	if st, err := m.Status(t.Context(), "tree"); err != nil || st.State != Absent {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestTreeIsFoundByParentageWithoutACgroup(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "pids")
	script := "echo $$ >>" + list + "; setsid sh -c 'echo $$ >>" + list + "; exec sleep 1000' & exec sleep 1000"
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	all := pids(t, list, 2)
	main, err := look(p.Pid)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = p.Wait() }() // so that it is no zombie that counts for nothing
	if err := (tree{main: main}).kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		if lives(pid) {
			t.Errorf("process %d of %v lives", pid, all)
		}
	}
}

func TestFailingServiceIsStartedAgain(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	u := shell(t, m, "fails", "exit 3")
	if err := m.Ensure(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	// Between two failures it runs for a moment.
	st := awaitStatus(t, m, "fails", "a second failure", func(s Status) bool { return s.Restarts >= 2 && s.State == Failed })
	if st.Message != "exited with status 3" {
		t.Errorf("status %+v", st)
	}
}

func TestServiceOutlivesItsSupervisorAndIsTakenOver(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	u := shell(t, m, "adopted", "exec sleep 1000")
	before := ensure(t, m, u)
	old, err := readRecord(m.path("adopted"))
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Supervisor.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, m, "adopted", "an unsupervised service", func(s Status) bool {
		alive, err := supervisorLives(m.path("adopted"))
		return err == nil && !alive && s.State == Running
	})
	after := ensure(t, m, u)
	if after.PID != before.PID {
		t.Errorf("the service was started again: %d, then %d", before.PID, after.PID)
	}
	if err := unix.Kill(before.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, m, "adopted", "a new process", func(s Status) bool { return s.State == Running && s.PID > 0 && s.PID != before.PID })
}

func TestRestartKeepsWhatTheServiceStarted(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	list := filepath.Join(t.TempDir(), "pids")
	u := shell(t, m, "restarted", "setsid sh -c 'echo $$ >>"+list+"; exec sleep 1000' & exec sleep 1000")
	before := ensure(t, m, u)
	kept := pids(t, list, 1)[0]
	if err := m.Restart(t.Context(), "restarted"); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, m, "restarted", "a new process", func(s Status) bool { return s.State == Running && s.PID > 0 && s.PID != before.PID })
	if !lives(kept) {
		t.Error("what it had started is gone")
	}
}

func TestRestartThatIsAskedForIsNoFailure(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	u := shell(t, m, "asked", "exec sleep 1000")
	u.RestartSeconds = 600 // the wait after an end that nobody asked for: longer than the test
	is := ensure(t, m, u)
	for range 3 {
		before := is.PID
		if err := m.Restart(t.Context(), "asked"); err != nil {
			t.Fatal(err)
		}
		is = awaitStatus(t, m, "asked", "a new process", func(s Status) bool { return s.State == Running && s.PID > 0 && s.PID != before })
		if is.Restarts != 0 || is.Message != "" {
			t.Errorf("status %+v, want no failure in it", is)
		}
	}
	if err := unix.Kill(is.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	failed := awaitStatus(t, m, "asked", "a failure", func(s Status) bool { return s.State == Failed && s.Restarts > 0 })
	if failed.Restarts != 1 || failed.Message != "ended by signal terminated" {
		t.Errorf("status %+v, want the one end that nobody asked for", failed)
	}
}

func TestStartThatFailsWasNotAskedFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		asked string
		child process
		want  bool
	}{
		{"the child", `{"pid": 7, "start": 5}`, process{PID: 7, Start: 5}, true},
		{"an earlier child of its number", `{"pid": 7, "start": 4}`, process{PID: 7, Start: 5}, false},
		{"a service without a child", `{"pid": 0, "start": 0}`, process{}, false},
	} {
		s := &supervisor{dir: t.TempDir(), rec: record{Child: tt.child}}
		if err := os.WriteFile(filepath.Join(s.dir, askedFile), []byte(tt.asked), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := s.asked(); got != tt.want {
			t.Errorf("%s: its end was asked for: %v, want %v", tt.name, got, tt.want)
		}
		if s.asked() {
			t.Errorf("%s: asked for twice", tt.name)
		}
	}
}

func TestServiceIsStartedAgainAsItSays(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, restart, script string
		want                  State
		runs                  int
	}{
		{"never, ended well", Never, "exit 0", Ended, 1},
		{"never, failed", Never, "exit 3", Failed, 1},
		{"on-failure, ended well", OnFailure, "exit 0", Ended, 1},
		{"on-failure, failed once", OnFailure, `[ "$(wc -l <LIST)" -gt 1 ]`, Ended, 2},
		{"always, ended well", Always, `[ "$(wc -l <LIST)" -lt 2 ] || exec sleep 1000`, Running, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newSupervised(t)
			list := filepath.Join(t.TempDir(), "pids")
			u := shell(t, m, "policy", strings.ReplaceAll("echo $$ >>LIST; "+tt.script, "LIST", list))
			u.Restart = tt.restart
			if err := m.Ensure(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			pids(t, list, tt.runs)
			awaitStatus(t, m, "policy", string(tt.want), func(s Status) bool {
				r, err := readRecord(m.path("policy"))
				return s.State == tt.want && err == nil && (r.Ended || s.PID > 0)
			})
			if err := m.Ensure(t.Context(), u); err != nil { // which starts nothing that has ended
				t.Fatal(err)
			}
			if got := pids(t, list, tt.runs); len(got) != tt.runs {
				t.Errorf("it ran %d times, want %d", len(got), tt.runs)
			}
			if err := m.Restart(t.Context(), "policy"); err != nil {
				t.Fatal(err)
			}
			pids(t, list, tt.runs+1)
		})
	}
}

func TestUnitFileSaysWhenToStartAgain(t *testing.T) {
	t.Parallel()
	for restart, want := range map[string]string{"": "Restart=always\nRestartSec", Always: "Restart=always\nRestartSec",
		OnFailure: "Restart=on-failure\nRemainAfterExit=yes\n", Never: "Restart=no\nRemainAfterExit=yes\n"} {
		got, err := encodeUnit(Unit{Name: "x", Exec: []string{"/bin/true"}, Restart: restart}, "/agent")
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%q: %v\n%s", restart, err, got)
		}
	}
}

func TestServiceWaitsForItsAddress(t *testing.T) {
	t.Parallel()
	m := newSupervised(t)
	u := shell(t, m, "waits", "exec sleep 1000")
	u.AwaitAddress = netip.MustParseAddr("fd00:1234:5678::1")
	if err := m.Ensure(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, m, "waits", "the wait", func(s Status) bool { return s.Message == "waiting for the address fd00:1234:5678::1" && s.PID == 0 })
	u.AwaitAddress = netip.MustParseAddr("127.0.0.1")
	ensure(t, m, u)
}

func TestUnitsThatAUnitFileCouldNotCarryAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		u    Unit
		says string
	}{
		{"a path in the name", Unit{Name: "../x", Exec: []string{"/bin/true"}}, "must be letters"},
		{"no program", Unit{Name: "x"}, "absolute path"},
		{"a relative program", Unit{Name: "x", Exec: []string{"true"}}, "absolute path"},
		{"an unclean program", Unit{Name: "x", Exec: []string{"/bin/../bin/true"}}, "absolute path"},
		{"a line break in an argument", Unit{Name: "x", Exec: []string{"/bin/true", "a\nExecStart=/bin/sh"}}, "control character"},
		{"a line break in the description", Unit{Name: "x", Description: "a\nb", Exec: []string{"/bin/true"}}, "control character"},
		{"an escape in the environment", Unit{Name: "x", Exec: []string{"/bin/true"}, Env: []string{"A=\x1b"}}, "control character"},
		{"no environment variable", Unit{Name: "x", Exec: []string{"/bin/true"}, Env: []string{"A B=c"}}, "KEY=value"},
		{"another rule of restarting", Unit{Name: "x", Exec: []string{"/bin/true"}, Restart: "sometimes\nExecStart=/bin/sh"}, "must be one of: always"},
		{"a relative log", Unit{Name: "x", Exec: []string{"/bin/true"}, LogFile: "log"}, "no absolute path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := encodeUnit(tt.u, "/agent")
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("systemd: %v", err)
			}
			m := newSupervised(t)
			if err := m.Ensure(t.Context(), tt.u); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("supervised: %v", err)
			}
		})
	}
}

func TestUnitFileTakesEveryWordLiterally(t *testing.T) {
	t.Parallel()
	got, err := encodeUnit(Unit{Name: "k3s", Description: "100% K3s", Exec: []string{"/usr/local/bin/k3s", "server", `a "b" \c $HOME %h`}, Env: []string{`A=$x "y"`},
		RestartSeconds: 5, AwaitAddress: netip.MustParseAddr("fd00::1")}, "/usr/local/bin/powernode-agent")
	if err != nil {
		t.Fatal(err)
	}
	want := `# Written by powernode-agent; changes are overwritten.
[Unit]
Description=100%% K3s
After=network-online.target powernode-agent.service
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStartPre="/usr/local/bin/powernode-agent" "wait-address" "fd00::1"
TimeoutStartSec=infinity
ExecStart="/usr/local/bin/k3s" "server" "a \"b\" \\c $$HOME %%h"
Environment="A=$x \"y\""
Restart=always
RestartSec=5
TimeoutStopSec=10
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("unit (-want +got):\n%s", diff)
	}
}

// fakeSystemctl answers `show` with what it is told and keeps the other calls.
type fakeSystemctl struct {
	show  string
	calls []string
}

func (f *fakeSystemctl) run(_ context.Context, args ...string) (string, error) {
	if args[0] == "show" {
		return f.show, nil
	}
	f.calls = append(f.calls, strings.Join(args, " "))
	return "", nil
}

func TestSystemdIsAskedOnlyForWhatIsNotSo(t *testing.T) {
	t.Parallel()
	f := &fakeSystemctl{show: "LoadState=loaded\nActiveState=inactive\n"}
	s := &systemd{o: Options{AgentBinary: "/agent"}, unitDir: t.TempDir(), run: f.run}
	u := Unit{Name: "k3s", Exec: []string{"/usr/local/bin/k3s", "server"}}
	step := func(show string, want ...string) {
		t.Helper()
		f.show, f.calls = show, nil
		if err := s.Ensure(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, f.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	}
	running := "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=7\nUnitFileState=enabled\nNeedDaemonReload=no\n"
	step("LoadState=not-found\nActiveState=inactive\n", "daemon-reload", "enable k3s.service", "start --no-block k3s.service")
	step(running)
	step("LoadState=loaded\nActiveState=inactive\nUnitFileState=enabled\n", "start --no-block k3s.service")
	step("LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n", "daemon-reload", "enable k3s.service", "start --no-block k3s.service")
	step(strings.Replace(running, "Reload=no", "Reload=yes", 1), "daemon-reload", "enable k3s.service", "restart --no-block k3s.service")
	u.Exec = append(u.Exec, "--debug")
	step(running, "daemon-reload", "enable k3s.service", "restart --no-block k3s.service")
	f.calls, f.show = nil, ""
	if err := s.Stop(t.Context(), "k3s"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"disable --now k3s.service", "daemon-reload", "reset-failed k3s.service"}, f.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(s.path("k3s")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unit file: %v", err)
	}
}

func TestStopEndsAUnitWhoseFileIsGone(t *testing.T) {
	t.Parallel()
	f := &fakeSystemctl{}
	s := &systemd{o: Options{AgentBinary: "/agent"}, unitDir: t.TempDir(), run: f.run}
	for show, want := range map[string][]string{
		"LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=7\nNeedDaemonReload=yes\n": {"stop k3s.service", "daemon-reload", "reset-failed k3s.service"},
		"LoadState=not-found\nActiveState=active\nSubState=running\nMainPID=7\n":                    {"stop k3s.service", "daemon-reload", "reset-failed k3s.service"},
		"LoadState=not-found\nActiveState=inactive\n":                                               nil,
	} {
		f.show, f.calls = show, nil
		if err := s.Stop(t.Context(), "k3s"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, f.calls); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", show, diff)
		}
	}
}

func TestShowIsReadAsAStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, out string
		want      Status
	}{
		{"runs", "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=7\nNRestarts=2\n", Status{State: Running, PID: 7, Restarts: 2}},
		{"waits for its address", "LoadState=loaded\nActiveState=activating\nSubState=start-pre\n", Status{State: Running, Message: "waiting for its address"}},
		{"fails again and again", "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\n", Status{State: Failed, Message: "result exit-code"}},
		{"has ended well", "LoadState=loaded\nActiveState=active\nSubState=exited\nMainPID=0\n", Status{State: Ended}},
		{"has failed for good", "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\n", Status{State: Failed, Message: "result exit-code"}},
		{"is stopped", "LoadState=loaded\nActiveState=inactive\nSubState=dead\n", Status{State: Stopped}},
		{"is unknown", "LoadState=not-found\nActiveState=inactive\n", Status{State: Absent}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &systemd{run: (&fakeSystemctl{show: tt.out}).run}
			got, err := s.Status(t.Context(), "k3s")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOwnCgroupIsFoundOnlyWhereItIsOurs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, mounts, own, want string }{
		{"unified host", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/system.slice/x.service\n", "/sys/fs/cgroup/system.slice/x.service"},
		{"hybrid host", "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "4:memory:/\n0::/\n", "/sys/fs/cgroup/unified"},
		{"a mount of a part", "31 23 0:27 /machines/a /c rw - cgroup2 cgroup2 rw\n", "0::/machines/a/b\n", "/c/b"},
		{"a mount from outside our namespace", "31 23 0:27 /../.. /c rw - cgroup2 cgroup2 rw\n", "0::/\n", ""},
		{"version 1 alone", "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := cgroupBase(tt.mounts, tt.own); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestStatIsReadPastANameWithBrackets(t *testing.T) {
	t.Parallel()
	got, err := parseStat("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1 1")
	if err != nil || got != (stat{state: 'S', parent: 1, start: 4711}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "7 (a", "7 (a) S 1", "7 (a) S x 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestLargeLogIsCopiedAwayAndEmptied(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxLogBytes); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path); err != nil {
		t.Fatal(err)
	}
	now, err := os.Stat(path)
	if err != nil || now.Size() != 0 {
		t.Errorf("log: %v %v", now, err)
	}
	old, err := os.Stat(path + ".1")
	if err != nil || old.Size() != maxLogBytes {
		t.Errorf("old log: %v %v", old, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path); err != nil {
		t.Errorf("a log that somebody took away: %v", err)
	}
}

func TestUnitOnDiskReadsTheSame(t *testing.T) {
	t.Parallel()
	u := Unit{Name: "x", Exec: []string{"/bin/true"}, AwaitAddress: netip.MustParseAddr("fd00::1")}
	b, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	var got Unit
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(u, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("unit (-want +got):\n%s", diff)
	}
}
