package netnstest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"powernode/internal/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, nil)) }

func TestMachinesReachEachOtherAndNotTheHost(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := s.Machine("a"), s.Machine("b")
	a.Run("ping", "-c1", "-W2", b.Address.String())
	a.Run("ping", "-c1", "-W2", b.Address4.String())
	a.Run("sh", "-c", "echo a > /run/mine")
	if out, err := b.Try("cat", "/run/mine"); err == nil {
		t.Errorf("machine b sees what a wrote: %q", out)
	}
	if _, err := os.Stat("/run/mine"); err == nil {
		t.Error("the host sees what a wrote")
	}
}

func TestNothingOutlivesTheTest(t *testing.T) {
	t.Parallel()
	var namespace string
	t.Run("a machine with a detached process", func(t *testing.T) {
		m := netnstest.NewSwitch(t).Machine("a")
		m.Run("sh", "-c", "setsid --fork sleep 1000 >/dev/null 2>&1")
		var err error
		if namespace, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", m.PID())); err != nil {
			t.Fatal(err)
		}
		if n := processesIn(t, namespace); n < 2 {
			t.Fatalf("%d processes are in the machine, want its first and the detached one", n)
		}
	})
	if n := processesIn(t, namespace); n != 0 {
		t.Errorf("%d processes are left in %s", n, namespace)
	}
}

// processesIn counts processes in a network namespace, threads too.
func processesIn(t *testing.T, namespace string) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil && target == namespace {
			n++
		}
	}
	return n
}

func TestAProcessThatNobodyWaitedForIsCollected(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.Run("a machine whose test forgets a process", func(t *testing.T) {
			m := netnstest.NewSwitch(t).Machine("a")
			if err := m.Start(exec.Command("sleep", "1000")); err != nil {
				t.Fatal(err)
			}
		})
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the machine does not end")
	}
}
