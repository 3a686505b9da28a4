package service

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rs/zerolog"
)

// Unit is a service as it is to run.
type Unit struct {
	Name           string     `json:"name"` // letters, digits and dashes; K3s' own names are k3s and k3s-agent
	Description    string     `json:"description"`
	Exec           []string   `json:"exec"` // argument vector, an absolute path first
	Env            []string   `json:"env"`  // KEY=value
	Dir            string     `json:"dir"`  // empty is /
	RestartSeconds int        `json:"restart_seconds"`
	StopSeconds    int        `json:"stop_seconds"` // for ending by itself, then it is killed; 0 is 10
	LogFile        string     `json:"log_file"`     // empty is systemd's journal, or nowhere
	AwaitAddress   netip.Addr `json:"await_address"`
	// Restart says when an ended service is started again: Always, OnFailure or Never. Left out where it is empty, so that
	// the units of earlier agents are as they were.
	Restart string `json:"restart,omitempty"`
}

// Values of Unit.Restart; empty is Always. A service that ended and is not started again is Ended.
const (
	Always    = "always"
	OnFailure = "on-failure"
	Never     = "never"
)

// restarts says whether the service is started again whatever way it ended.
func (u Unit) restarts() bool { return u.Restart == "" || u.Restart == Always }

// grace is how long the service may take to end by itself.
func (u Unit) grace() time.Duration {
	if u.StopSeconds <= 0 {
		return 10 * time.Second
	}
	return time.Duration(u.StopSeconds) * time.Second
}

// State is what a service does.
type State string

// States. Failed is a service that is started again and again, or that failed once and is not; Ended is one that ended well
// and is not started again.
const (
	Running State = "running"
	Stopped State = "stopped"
	Failed  State = "failed"
	Ended   State = "ended"
	Absent  State = "absent"
)

// Status is a service as it is.
type Status struct {
	State    State
	PID      int       // of its main process, 0 when there is none
	Since    time.Time // of the main process's start; zero is unknown
	Restarts int       // after ends that nobody asked for
	Message  string    // why it doesn't run
}

// Manager runs services. Its methods are idempotent.
type Manager interface {
	// Ensure makes the service be there, as wanted, started now and at each boot.
	Ensure(ctx context.Context, u Unit) error
	// Restart starts the service anew. Of one that is always running only the main process ends; what it had started stays.
	Restart(ctx context.Context, name string) error
	// Stop ends the service with all that it has started and forgets it. Nothing there is success.
	Stop(ctx context.Context, name string) error
	Status(ctx context.Context, name string) (Status, error)
}

// Options say where services are kept.
type Options struct {
	StateDir    string // the agent's
	AgentBinary string // runs `supervise` and `wait-address`
	Log         zerolog.Logger
}

// New chooses systemd where it is the first process, otherwise supervisors of our own.
func New(o Options) Manager {
	if HasSystemd() {
		return &systemd{o: o, unitDir: "/etc/systemd/system", run: runSystemctl}
	}
	return &supervised{o: o, dir: filepath.Join(o.StateDir, "services")}
}

// HasSystemd says whether systemd is the machine's first process.
func HasSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,40}$`)

func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("service name %q must be letters, digits and dashes", name)
	}
	return nil
}

// check refuses what one of the two ways couldn't carry, so that both take the same.
func (u Unit) check() error {
	if err := checkName(u.Name); err != nil {
		return err
	}
	if len(u.Exec) == 0 || !filepath.IsAbs(u.Exec[0]) || filepath.Clean(u.Exec[0]) != u.Exec[0] {
		return fmt.Errorf("service %s: its program must be an absolute path", u.Name)
	}
	texts := append([]string{u.Description, u.Dir, u.LogFile}, u.Exec...)
	for _, s := range append(texts, u.Env...) {
		if strings.ContainsFunc(s, unicode.IsControl) {
			return fmt.Errorf("service %s: a control character in %q", u.Name, s)
		}
	}
	for _, e := range u.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || !envPattern.MatchString(k) {
			return fmt.Errorf("service %s: an environment variable that is not KEY=value", u.Name)
		}
	}
	if !slices.Contains([]string{"", Always, OnFailure, Never}, u.Restart) {
		return fmt.Errorf("service %s: restart %q must be one of: always, on-failure, never", u.Name, u.Restart)
	}
	for _, p := range []string{u.Dir, u.LogFile} {
		if p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("service %s: %q is no absolute path", u.Name, p)
		}
	}
	return nil
}

var envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// AwaitAddress waits until the machine has the address on any interface.
func AwaitAddress(ctx context.Context, a netip.Addr) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		has, err := HasAddress(a)
		if err != nil {
			return err
		}
		if has {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the address %s: %w", a, ctx.Err())
		case <-tick.C:
		}
	}
}

// HasAddress says whether an interface of the machine has the address.
func HasAddress(a netip.Addr) (bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("read the machine's addresses: %w", err)
	}
	for _, have := range addrs {
		p, err := netip.ParsePrefix(have.String())
		if err == nil && p.Addr().Unmap() == a.Unmap() {
			return true, nil
		}
	}
	return false, nil
}
