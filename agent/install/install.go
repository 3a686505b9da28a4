package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent"
	"powernode/agent/atomicfile"
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
	// Run runs the agent of the state directory until its machine has left (agent.ErrLeft) or ctx ends. Install alone calls it.
	Run func(ctx context.Context) error
	Log zerolog.Logger
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
	if err := Return(o.StateDir); err != nil {
		return err
	}
	enrolled, err := isEnrolled(o, r)
	if err != nil {
		return err
	}
	// The token is used up last: what can fail on this machine fails before.
	if err := place(); err != nil {
		return err
	}
	services := service.New(service.Options{StateDir: o.StateDir, AgentBinary: ProgramPath, Log: o.Log})
	if !enrolled {
		if err := enrol(ctx, o, r, services); err != nil {
			return err
		}
	}
	err = services.Ensure(ctx, service.Unit{Name: service.AgentName, Description: "Powernode node agent", RestartSeconds: 2, StopSeconds: 20,
		Exec: []string{ProgramPath, "run", "--state-dir", o.StateDir, "--run-dir", o.RunDir}})
	if err != nil {
		return fmt.Errorf("this machine is instance %s, and its agent could not be started: run the same command again: %w", r.InstanceID, err)
	}
	return nil
}

// isEnrolled says whether this machine is the instance already, and refuses one that is another.
func isEnrolled(o Options, r Request) (bool, error) {
	is, err := agent.EnrolledAs(o.StateDir)
	switch {
	case r.Replace:
		return err == nil && is == r.InstanceID, nil
	case err != nil:
		return false, fmt.Errorf("%w: --replace enrols this machine anew", err)
	case is != "" && is != r.InstanceID:
		return false, fmt.Errorf("this machine is instance %s of a platform: terminate that one first, or give it up with --replace", is)
	}
	return is != "", nil
}

// enrol makes this machine the instance.
func enrol(ctx context.Context, o Options, r Request, services service.Manager) error {
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
	left, err := leaveFormer(ctx, o)
	switch {
	case ctx.Err() != nil && !left: // it was cut off: the machine stays what it was, below
	case err != nil: // the platform's record of the former instance stays open: nobody can clean up for it any more
		o.Log.Warn().Err(err).Msg("the instance that this machine was is given up without its clean-up")
	case left:
		running = false
		if err := services.Stop(context.WithoutCancel(ctx), service.AgentName); err != nil {
			return fmt.Errorf("remove the service of the agent that has left: %w", err)
		}
	}
	err = agent.Enroll(ctx, o.StateDir, o.Version, nodeapi.Enrollment{InstanceID: r.InstanceID, Token: r.Token, PlatformURLs: urls, CAPEM: ca})
	if err != nil && running { // the machine stays what it was
		err = errors.Join(err, services.Restart(context.WithoutCancel(ctx), service.AgentName))
	}
	return err
}

// Bounds of what a former instance takes: to be asked about, and to be left.
const (
	askTime   = 15 * time.Second
	leaveTime = 3 * time.Minute
)

// leaveFormer has a machine whose former instance has ended leave as that one first, as its agent would have done had it run:
// what was made for it is cleaned, and the platform knows. A former instance that lives, or that nobody knows, is given up as it is.
func leaveFormer(ctx context.Context, o Options) (left bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if leave, err := agent.ToLeave(asking, o.StateDir); err != nil || !leave {
		return false, err
	}
	o.Log.Info().Msg("the instance that this machine was has ended: the machine leaves as that one first")
	leaving, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if err := o.Run(leaving); !errors.Is(err, agent.ErrLeft) {
		return false, errors.Join(fmt.Errorf("the machine is not clean after %s", leaveTime), err)
	}
	if err := empty(o.StateDir, nil); err != nil {
		return true, fmt.Errorf("remove the state of an agent that has left: %w", err)
	}
	return true, os.RemoveAll(o.RunDir)
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
	return atomicfile.Copy(ProgramPath, from, 0o755)
}

// leftFile stands in the state directory from the first step of Remove to its last.
const leftFile = "left"

// Left says that the agent has left the platform, and was cut off while it removed itself.
func Left(stateDir string) bool {
	_, err := os.Lstat(filepath.Join(stateDir, leftFile))
	return err == nil
}

// Return gives up a removal that was cut off: what it would take away is what is to be there now. Whoever enrols calls it first.
func Return(stateDir string) error {
	if !Left(stateDir) {
		return nil
	}
	if err := os.RemoveAll(stateDir); err != nil {
		return fmt.Errorf("remove the state of an agent that has left: %w", err)
	}
	return nil
}

// Remove takes the agent away from a machine that has left: its state, and where Install put it, its service and program.
// The caller is that service, and ends right after. Cut off at any point before the service has gone, the next start finds
// that it has left, and calls Remove again; what says so goes last.
func Remove(ctx context.Context, o Options) error {
	if err := forget(o); err != nil {
		return fmt.Errorf("remove the agent's state: %w", err)
	}
	if service.HasSystemd() && service.Installed(service.AgentName) {
		if err := service.Retire(ctx, service.AgentName); err != nil {
			return err
		}
		if err := os.Remove(ProgramPath); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the agent's program: %w", err)
		}
	}
	if err := os.RemoveAll(o.StateDir); err != nil {
		return fmt.Errorf("remove the agent's state: %w", err)
	}
	return nil
}

// forget takes the agent's state away, but for the file that says so. That file is written as soon as there is room for it on a
// full disk; until then the agent's identity and last document say the same, with the platform's help.
func forget(o Options) error {
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return err
	}
	if err := empty(o.StateDir, append(agent.LeavingFiles(), leftFile)); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(o.StateDir, leftFile), nil, 0o600); err != nil {
		return err
	}
	if err := empty(o.StateDir, []string{leftFile}); err != nil {
		return err
	}
	return os.RemoveAll(o.RunDir)
}

// empty removes what is in a folder, but for some names.
func empty(dir string, but []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.Contains(but, e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
