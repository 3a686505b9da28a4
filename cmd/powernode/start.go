package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startWait bounds how long a start is waited for.
	startWait = 30 * time.Second
	// startLook is how often a start is looked at.
	startLook = 10 * time.Millisecond
	// maxStarts is how many starts may fail by themselves before it is told.
	maxStarts = 3
	// maxLog is how large the log may be when serve is started: a larger one is put aside first.
	maxLog = 8 << 20
)

// connectControl connects to the control plane of a state directory, and starts a detached one where none runs.
func connectControl(ctx context.Context, dir stateDir) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	conn, _, err := dialControl(ctx, dir)
	if err == nil || !absent(err) {
		return conn, err
	}
	unlock, err := lockStart(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return startControl(ctx, dir)
}

// startControl starts serve until it answers. The caller holds the start lock: of many bridges one starts.
func startControl(ctx context.Context, dir stateDir) (*net.UnixConn, error) {
	var child *detached
	failed := 0
	tick := time.NewTicker(startLook)
	defer tick.Stop()
	for {
		conn, _, err := dialControl(ctx, dir)
		if err == nil || !absent(err) {
			return conn, err
		}
		select {
		case end := <-child.ended():
			// One that was killed is started again; one that can't start says so in the log.
			if child = nil; end.ExitCode() >= 0 {
				failed++
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("the control plane does not answer after %s; see %s", startWait, dir.logFile())
		case <-tick.C:
		}
		if failed >= maxStarts {
			return nil, fmt.Errorf("powernode serve can't be started: %s (see %s)", lastLine(dir.logFile()), dir.logFile())
		}
		if child == nil && !serveHolds(dir) { // one that is starting or ending is waited for
			if child, err = startDetached(dir); err != nil {
				return nil, err
			}
		}
	}
}

// absent says whether nobody listens on the socket.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// lockStart waits for its turn to start serve.
func lockStart(ctx context.Context, dir stateDir) (unlock func(), err error) {
	f, err := os.OpenFile(dir.startLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the start: %w", err)
	}
	tick := time.NewTicker(startLook)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock the start: %w", err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("the control plane is being started, and does not answer; see %s", dir.logFile()), f.Close())
		}
	}
}

// serveHolds says whether a serve, of whatever state, holds the state directory.
func serveHolds(dir stateDir) bool {
	f, err := os.Open(dir.pidFile())
	if err != nil {
		return false
	}
	defer f.Close() // closing is what unlocks
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// detached is a serve that this process has started; it outlives this process.
type detached struct{ end chan *os.ProcessState }

// ended is where the process's end is told; of none, never.
func (d *detached) ended() <-chan *os.ProcessState {
	if d == nil {
		return nil
	}
	return d.end
}

// startDetached starts serve in a session of its own, with its log in the state directory.
func startDetached(dir stateDir) (*detached, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	log, err := openLog(dir)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	cmd := exec.Command(self, "serve", "--"+stateDirFlag, string(dir))
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = withoutCredential(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start powernode serve: %w", err)
	}
	d := &detached{end: make(chan *os.ProcessState, 1)}
	go func() { // ends with the process, or with this one
		cmd.Wait() // its state says all
		d.end <- cmd.ProcessState
	}()
	return d, nil
}

func openLog(dir stateDir) (*os.File, error) {
	if info, err := os.Stat(dir.logFile()); err == nil && info.Size() > maxLog {
		if err := os.Rename(dir.logFile(), dir.logFile()+".1"); err != nil {
			return nil, fmt.Errorf("put the log aside: %w", err)
		}
	}
	f, err := os.OpenFile(dir.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return f, nil
}

// lastLine is the last line of a file, bounded: what a process that could not start has said.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "no log"
	}
	defer f.Close() // it was read
	info, err := f.Stat()
	if err != nil {
		return "no log"
	}
	tail := make([]byte, min(info.Size(), 500))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return "no log"
	}
	return lastOf(string(tail))
}
