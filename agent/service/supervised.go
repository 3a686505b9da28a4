package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
)

// supervised runs each service under a process `supervise` of its own. dir has a directory a service: unit.json is
// what to run, lock is held by the supervisor as long as it lives, status.json is what it says, asked.json is the child whose
// end is wanted.
type supervised struct {
	o   Options
	dir string
}

// Files of a service's directory.
const (
	unitFile   = "unit.json"
	lockFile   = "lock"
	statusFile = "status.json"
	askedFile  = "asked.json"
)

// record is a supervisor's word about itself and its child. Start times tell a process from another with its number.
type record struct {
	Supervisor process   `json:"supervisor"`
	Child      process   `json:"child"`
	Cgroup     string    `json:"cgroup"` // of the child's tree, empty where there is none
	Waiting    string    `json:"waiting"`
	Restarts   int       `json:"restarts"`
	Exit       string    `json:"exit"`            // of the last child
	Ended      bool      `json:"ended,omitempty"` // and no other will be started
	Well       bool      `json:"well,omitempty"`  // the last child exited with status 0
	Since      time.Time `json:"since"`
}

func (m *supervised) path(name string) string { return filepath.Join(m.dir, name) }

func (m *supervised) Ensure(ctx context.Context, u Unit) error {
	if err := u.check(); err != nil {
		return err
	}
	want, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("encode the service %s: %w", u.Name, err)
	}
	dir := m.path(u.Name)
	have, err := os.ReadFile(filepath.Join(dir, unitFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the service %s: %w", u.Name, err)
	}
	alive, err := supervisorLives(dir)
	if err != nil {
		return err
	}
	if alive && bytes.Equal(have, want) {
		return nil
	}
	if alive || (len(have) > 0 && !bytes.Equal(have, want)) {
		if err := m.end(ctx, dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the service's directory: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, unitFile), want, 0o600); err != nil {
		return err
	}
	return m.start(ctx, u.Name, dir)
}

// start runs the supervisor, detached, and waits until it holds its lock.
func (m *supervised) start(ctx context.Context, name, dir string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start the supervisor of %s: %w", name, err)
	}
	defer null.Close()
	logs, err := os.OpenFile(filepath.Join(dir, "supervisor.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start the supervisor of %s: %w", name, err)
	}
	defer logs.Close()
	// Not CommandContext: the process outlives every context of ours.
	cmd := exec.Command(m.o.AgentBinary, "supervise", "--name", name, "--state", m.o.StateDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, logs
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the supervisor of %s: %w", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the supervisor, reaping it while we live
	return await(ctx, 10*time.Second, "the supervisor of "+name, func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the supervisor of %s ended: %w", name, errors.Join(err, errors.New("see supervisor.log in its directory")))
		default:
		}
		r, err := readRecord(dir)
		return err == nil && r.Supervisor.PID == cmd.Process.Pid, nil
	})
}

func (m *supervised) Restart(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	dir := m.path(name)
	r, err := readRecord(dir)
	if err != nil {
		return err
	}
	u, err := readUnit(dir)
	if err != nil {
		return err
	}
	if u.restarts() {
		return r.Child.askToEnd(dir)
	}
	// Its end is no reason for its supervisor to start it again.
	if err := m.end(ctx, dir); err != nil {
		return err
	}
	return m.start(ctx, name, dir)
}

// askToEnd ends a service's child, and has its supervisor know that it was asked to.
func (p process) askToEnd(dir string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode a process: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, askedFile), b, 0o600); err != nil {
		return err
	}
	return p.signal(unix.SIGTERM)
}

func (m *supervised) Stop(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	dir := m.path(name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := m.end(ctx, dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the service %s: %w", name, err)
	}
	if err := os.Remove(m.dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("remove the services' directory: %w", err)
	}
	return nil
}

// end asks the supervisor to end its tree and itself. One that is dead or deaf is replaced by our own hand.
func (m *supervised) end(ctx context.Context, dir string) error {
	r, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // never came up
	}
	if err != nil {
		return err
	}
	alive, err := supervisorLives(dir)
	if err != nil {
		return err
	}
	if alive {
		u, _ := readUnit(dir) // unreadable: as long as the default
		if err := r.Supervisor.signal(unix.SIGTERM); err != nil {
			return err
		}
		err := await(ctx, u.grace()+10*time.Second, "the supervisor's end", func() (bool, error) {
			return !r.Supervisor.alive(), nil
		})
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err == nil {
			return nil
		}
	}
	// Stopped first, so that it starts nothing again while its tree is taken down.
	if err := r.Supervisor.signal(unix.SIGSTOP); err != nil {
		return err
	}
	t := tree{root: r.Supervisor, main: r.Child, cgroup: r.Cgroup}
	if err := t.kill(ctx); err != nil {
		return err
	}
	return r.Supervisor.signal(unix.SIGKILL)
}

func (m *supervised) Status(_ context.Context, name string) (Status, error) {
	if err := checkName(name); err != nil {
		return Status{}, err
	}
	dir := m.path(name)
	if _, err := os.Stat(filepath.Join(dir, unitFile)); errors.Is(err, fs.ErrNotExist) {
		return Status{State: Absent}, nil
	}
	alive, err := supervisorLives(dir)
	if err != nil {
		return Status{}, err
	}
	r, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !alive && !r.Child.alive()) {
		return Status{State: Stopped}, nil
	}
	if err != nil {
		return Status{}, err
	}
	st := Status{Restarts: r.Restarts, Message: r.Waiting}
	if r.Child.alive() {
		st.State, st.PID, st.Since = Running, r.Child.PID, r.Since
		return st, nil
	}
	if r.Ended && r.Well {
		st.State = Ended
		return st, nil
	}
	st.State = Failed
	if r.Exit != "" {
		st.Message = r.Exit
	} else if r.Waiting != "" {
		st.State = Running // waits for its address before its first start
	}
	return st, nil
}

func readUnit(dir string) (Unit, error) {
	var u Unit
	b, err := os.ReadFile(filepath.Join(dir, unitFile))
	if err != nil {
		return u, fmt.Errorf("read the service: %w", err)
	}
	if err := json.Unmarshal(b, &u); err != nil {
		return u, fmt.Errorf("read the service: %w", err)
	}
	return u, nil
}

func readRecord(dir string) (record, error) {
	var r record
	b, err := os.ReadFile(filepath.Join(dir, statusFile))
	if err != nil {
		return r, fmt.Errorf("read a service's state: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read a service's state: %w", err)
	}
	return r, nil
}

// supervisorLives asks the lock: the kernel frees it with the process that holds it.
func supervisorLives(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a supervisor: %w", err)
	}
	defer f.Close()
	// A shared lock: two who only look don't see each other.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a supervisor: %w", err)
	}
	return false, nil
}

// await asks until the answer is yes.
func await(ctx context.Context, d time.Duration, what string, yes func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := yes()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}
