package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/service"
	"powernode/nodeapi"
)

// ProgramPath is where the agent's program stands.
const ProgramPath = "/usr/local/bin/powernode-agent"

// Options say where the agent lives.
type Options struct {
	StateDir string
	RunDir   string
	Version  string
	Log      zerolog.Logger
}

// Request is what the platform's command says. CASHA256 pins its CA.
type Request struct {
	InstanceID string
	Token      string
	URLs       []string
	CASHA256   string
	Replace    bool // also where the machine is another instance by now
}

// Install enrols this machine and makes the agent a service of systemd, started now and at each boot. Repeated for the
// same instance, it puts in order what is missing.
func Install(ctx context.Context, o Options, r Request) error {
	if os.Geteuid() != 0 {
		return errors.New("installing the agent needs root")
	}
	if !service.HasSystemd() {
		return errors.New("this machine has no systemd: enrol it with powernode-agent enroll, and keep powernode-agent run running by your own means")
	}
	services := service.New(service.Options{StateDir: o.StateDir, AgentBinary: ProgramPath, Log: o.Log})
	if err := enrol(ctx, o, r, services); err != nil {
		return err
	}
	if err := place(); err != nil {
		return err
	}
	err := services.Ensure(ctx, service.Unit{Name: service.AgentName, Description: "Powernode node agent", RestartSeconds: 2, StopSeconds: 20,
		Exec: []string{ProgramPath, "run", "--state-dir", o.StateDir, "--run-dir", o.RunDir}})
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	return nil
}

// enrol makes this machine the instance, unless it is already.
func enrol(ctx context.Context, o Options, r Request, services service.Manager) error {
	is, err := agent.EnrolledAs(o.StateDir)
	switch {
	case err != nil && !r.Replace:
		return fmt.Errorf("%w: --replace enrols this machine anew", err)
	case is == r.InstanceID:
		return nil
	case is != "" && !r.Replace:
		return fmt.Errorf("this machine is instance %s of a platform: terminate that one first, or give it up with --replace", is)
	}
	ca, urls, err := reach(ctx, r)
	if err != nil {
		return err
	}
	running := service.Installed(service.AgentName)
	if running { // its agent holds the state's lock
		if err := service.Halt(ctx, service.AgentName); err != nil {
			return fmt.Errorf("stop the agent: %w", err)
		}
	}
	err = agent.Enroll(ctx, o.StateDir, o.Version, nodeapi.Enrollment{InstanceID: r.InstanceID, Token: r.Token, PlatformURLs: urls, CAPEM: ca})
	if err != nil && running { // the machine stays what it was
		err = errors.Join(err, services.Restart(context.WithoutCancel(ctx), service.AgentName))
	}
	return err
}

// reach finds the first address that leads to the pinned CA, and answers the addresses with that one first.
func reach(ctx context.Context, r Request) (caPEM string, urls []string, err error) {
	var errs []error
	for i, u := range r.URLs {
		ca, err := nodeapi.FetchCA(ctx, u, r.CASHA256)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", u, err))
			continue
		}
		urls = append([]string{u}, r.URLs[:i]...)
		return ca, append(urls, r.URLs[i+1:]...), nil
	}
	return "", nil, errors.Join(errs...)
}

// place puts the running program where the service starts it.
func place() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the agent's program: %w", err)
	}
	from, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("read the agent's program: %w", err)
	}
	defer from.Close()
	mine, err := from.Stat()
	if err != nil {
		return fmt.Errorf("look at the agent's program: %w", err)
	}
	if there, err := os.Stat(ProgramPath); err == nil && os.SameFile(mine, there) {
		return nil
	}
	to, err := os.CreateTemp(filepath.Dir(ProgramPath), ".powernode-agent-*")
	if err != nil {
		return fmt.Errorf("write the agent's program: %w", err)
	}
	defer os.Remove(to.Name())
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Chmod(0o755), to.Sync(), to.Close()); err != nil {
		return fmt.Errorf("write the agent's program: %w", err)
	}
	if err := os.Rename(to.Name(), ProgramPath); err != nil {
		return fmt.Errorf("write the agent's program: %w", err)
	}
	return nil
}

// Remove takes the agent away from a machine that has left: its state, and where Install put it, its program and service.
// The caller is that service, and ends right after.
func Remove(ctx context.Context, o Options) error {
	for _, dir := range []string{o.StateDir, o.RunDir} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the agent's state: %w", err)
		}
	}
	if !service.HasSystemd() || !service.Installed(service.AgentName) {
		return nil
	}
	if err := os.Remove(ProgramPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the agent's program: %w", err)
	}
	return service.Retire(ctx, service.AgentName)
}
