package local

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"powernode/platform/provider"
	"powernode/platform/provider/local/cgroup"
	"powernode/schema"
)

// Entry is a machine as an operator sees it.
type Entry struct {
	ID         string
	InstanceID string // "" for a workstation
	Name       string
	Kind       string // node, workstation
	Status     provider.Status
	PID        int // of the first process, 0 when there is none
	Addresses  []netip.Addr
}

// Entries are all machines of the installation, of every account, and the workstations.
func (p *Provider) Entries(ctx context.Context) ([]Entry, error) {
	recs, err := p.records(ctx)
	if err != nil {
		return nil, err
	}
	out := []Entry{}
	for _, rec := range recs {
		e := Entry{ID: rec.ID, InstanceID: rec.Tags[tagInstance], Name: rec.Name, Kind: rec.Kind, Status: p.status(rec), Addresses: rec.Addresses}
		if rec.alive() {
			e.PID = rec.Init.PID
		}
		out = append(out, e)
	}
	return out, nil
}

// find answers the machine that a person means: by instance id, the provider's id, or its name where one has it.
func (p *Provider) find(ctx context.Context, ref string) (record, error) {
	recs, err := p.records(ctx)
	if err != nil {
		return record{}, err
	}
	var named []record
	for _, rec := range recs {
		if rec.ID == ref || (rec.Kind == kindNode && rec.Tags[tagInstance] == ref) {
			return rec, nil
		}
		if rec.Name == ref {
			named = append(named, rec)
		}
	}
	if len(named) == 1 {
		return named[0], nil
	}
	var candidates []string
	for _, rec := range named {
		candidates = append(candidates, rec.ID)
	}
	if len(candidates) > 0 {
		return record{}, &schema.Error{
			Code: schema.Conflict, Message: fmt.Sprintf("%d machines are named %q: name one by its id (%s)", len(named), ref, strings.Join(candidates, ", ")),
			Details: map[string]any{"candidates": candidates},
		}
	}
	return record{}, &schema.Error{Code: schema.NotFound, Message: fmt.Sprintf("no local machine %q: powernode local list names them", ref)}
}

// running is find for a machine that must run.
func (p *Provider) running(ctx context.Context, ref string) (record, error) {
	if err := requirePrivileges(); err != nil {
		return record{}, err
	}
	rec, err := p.find(ctx, ref)
	if err != nil {
		return rec, err
	}
	if !rec.alive() {
		return rec, &schema.Error{Code: schema.PreconditionFailed, Message: fmt.Sprintf("machine %q is %s", rec.Name, p.status(rec))}
	}
	return rec, nil
}

// Command runs a program inside a machine, in all of its namespaces, with an environment of its own. Input and output
// are the caller's to set. The program dies with the command that entered.
func (p *Provider) Command(ctx context.Context, ref string, argv ...string) (*exec.Cmd, error) {
	rec, err := p.running(ctx, ref)
	if err != nil {
		return nil, err
	}
	enter, args, env, err := entering(rec.Init.PID, argv)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, enter, args[1:]...)
	cmd.Env = env
	return cmd, nil
}

// Enter replaces this process by a program inside a machine: terminal, signals and exit code are the program's. It
// returns only when it fails.
func (p *Provider) Enter(ctx context.Context, ref string, argv ...string) error {
	rec, err := p.running(ctx, ref)
	if err != nil {
		return err
	}
	enter, args, env, err := entering(rec.Init.PID, argv)
	if err != nil {
		return err
	}
	inst, err := p.loadInstallation()
	if err != nil {
		return err
	}
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := cgroup.Join(hierarchies, inst.groupOf(rec), os.Getpid()); err != nil {
		return err
	}
	return fmt.Errorf("enter machine: %w", unix.Exec(enter, args, env))
}

// entering is the argument vector: nsenter takes the namespaces, and setpriv ties the program to it, since killing
// nsenter alone would leave the program behind.
func entering(pid int, argv []string) (path string, args, env []string, err error) {
	if len(argv) == 0 {
		return "", nil, nil, errors.New("no command given")
	}
	path, err = exec.LookPath("nsenter")
	if err != nil {
		return "", nil, nil, fmt.Errorf("find nsenter (package util-linux): %w", err)
	}
	args = []string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--",
		"/usr/bin/setpriv", "--pdeathsig", "KILL", "--"}
	env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "container=powernode-local"}
	if term := os.Getenv("TERM"); term != "" {
		env = append(env, "TERM="+term)
	}
	return path, append(args, argv...), env, nil
}
