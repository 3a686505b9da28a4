package module

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Packages is a machine's package manager. Names are Debian's, checked before.
type Packages interface {
	Installed(ctx context.Context, names []string) (map[string]bool, error)
	Install(ctx context.Context, names []string) error
	// Remove takes packages away. One that others have come to need stays, as one that goes with the last of them.
	Remove(ctx context.Context, names []string) error
}

// FindPackages answers the machine's package manager, or nil. A machine with apt's programs and without its database, as
// one that borrows them from its host, has none.
func FindPackages() Packages {
	a := &apt{updateEvery: 10 * time.Minute}
	for _, each := range []struct {
		name string
		path *string
	}{{"apt-get", &a.get}, {"apt-mark", &a.mark}, {"dpkg", &a.dpkg}, {"dpkg-query", &a.query}} {
		path, err := exec.LookPath(each.name)
		if err != nil {
			return nil
		}
		*each.path = path
	}
	if _, err := os.Stat("/var/lib/dpkg/status"); err != nil {
		return nil
	}
	return a
}

// apt is Debian's, and that of what comes from it.
type apt struct {
	get, mark, dpkg, query string
	updateEvery            time.Duration
	updated                time.Time
}

// Time limits. A killed dpkg leaves a machine half done, so it is asked to end first.
const (
	aptTimeout = 20 * time.Minute
	aptGrace   = 30 * time.Second
)

func (a *apt) Installed(ctx context.Context, names []string) (map[string]bool, error) {
	out, err := a.run(ctx, a.query, append([]string{"-W", "-f=${Package} ${db:Status-Status}\n", "--"}, names...)...)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: it knows some of them not at all
		return nil, err
	}
	installed := map[string]bool{}
	for line := range strings.Lines(out) {
		name, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		if state == "installed" {
			installed[name] = true
		}
	}
	return installed, nil
}

// Install installs names, after an update of the lists where that seems to be what is missing.
func (a *apt) Install(ctx context.Context, names []string) error {
	args := append([]string{"install", "-y", "-q", "--no-install-recommends", "--no-remove", "-o", "Dpkg::Options::=--force-confold",
		"-o", "DPkg::Lock::Timeout=120", "--"}, names...)
	_, err := a.run(ctx, a.get, args...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if strings.Contains(err.Error(), "dpkg --configure -a") { // an installation was cut off
		if _, err := a.run(ctx, a.dpkg, "--configure", "-a"); err != nil {
			return err
		}
	} else if time.Since(a.updated) < a.updateEvery {
		return err
	} else {
		a.updated = time.Now()
		if _, uerr := a.run(ctx, a.get, "update", "-q"); uerr != nil {
			return errors.Join(err, uerr)
		}
	}
	_, err = a.run(ctx, a.get, args...)
	return err
}

func (a *apt) Remove(ctx context.Context, names []string) error {
	installed, err := a.Installed(ctx, names)
	if err != nil {
		return err
	}
	var there []string
	for _, name := range names {
		if installed[name] {
			there = append(there, name)
		}
	}
	if len(there) == 0 {
		return nil
	}
	// Not apt-get: it would take with it whatever has come to depend on them.
	if _, err = a.run(ctx, a.dpkg, append([]string{"--remove", "--"}, there...)...); err == nil {
		return nil
	}
	if !strings.Contains(err.Error(), "dependency problems") {
		return err
	}
	_, err = a.run(ctx, a.mark, append([]string{"auto", "--"}, there...)...)
	return err
}

// run runs a program without a terminal and without questions. Its error has the end of what it said.
func (a *apt) run(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, aptTimeout)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C",
		"DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = aptGrace
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		return out.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), args[0], err, said[max(0, len(said)-400):])
	}
	return out.String(), nil
}
