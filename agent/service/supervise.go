package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
)

const (
	// steadyAfter is how long a child must have run for its next failure to count as the first.
	steadyAfter   = time.Minute
	maxRestart    = 30 * time.Second
	maxLogBytes   = 64 << 20
	logCheckEvery = time.Minute
)

// Supervise is the process `powernode-agent supervise`: it runs the service of that name until it is told to end, by
// SIGTERM. A child that an earlier supervisor left running is taken over.
func Supervise(ctx context.Context, stateDir, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	s := &supervisor{dir: filepath.Join(stateDir, "services", name)}
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.load(); err != nil {
		return err
	}
	// Orphans of the service become our children, so that they can be found and reaped.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	signal.Ignore(unix.SIGHUP)
	return s.run(ctx)
}

type supervisor struct {
	dir  string
	unit Unit
	rec  record
}

func (s *supervisor) lock() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the service: %w", err)
	}
	// Somebody who looks holds a shared lock for a moment.
	err = await(context.Background(), 2*time.Second, "the service's lock", func() (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *supervisor) load() error {
	var err error
	if s.unit, err = readUnit(s.dir); err != nil {
		return err
	}
	if err := s.unit.check(); err != nil {
		return err
	}
	if old, err := readRecord(s.dir); err == nil { // none, or one that can't be read: there is nothing to take over
		s.rec = old
		s.rec.Ended, s.rec.Well = false, false
	}
	if s.rec.Supervisor, err = look(os.Getpid()); err != nil {
		return fmt.Errorf("look at ourselves: %w", err)
	}
	return s.save()
}

func (s *supervisor) save() error {
	b, err := json.Marshal(s.rec)
	if err != nil {
		return fmt.Errorf("encode a service's state: %w", err)
	}
	return atomicfile.Write(filepath.Join(s.dir, statusFile), b, 0o600)
}

func (s *supervisor) run(ctx context.Context) error {
	delay := time.Duration(max(s.unit.RestartSeconds, 1)) * time.Second
	wait := delay
	for {
		how, ran := s.once(ctx)
		if ctx.Err() != nil {
			return s.end()
		}
		asked := s.asked()
		s.rec.Child, s.rec.Exit, s.rec.Well = process{}, how.text, how.well
		if asked || ran >= steadyAfter {
			wait = delay
		}
		if asked { // no failure, and nothing to wait for
			s.rec.Exit = ""
			continue
		}
		if s.unit.Restart == Never || (s.unit.Restart == OnFailure && s.rec.Well) {
			return s.rest(ctx)
		}
		s.rec.Restarts++
		if err := s.save(); err != nil {
			return err
		}
		if !pause(ctx, wait) {
			return s.end()
		}
		wait = min(2*wait, max(maxRestart, delay))
	}
}

// once has the service run until its end, and answers how and after how long that came.
func (s *supervisor) once(ctx context.Context) (exit, time.Duration) {
	exited, err := s.begin(ctx)
	if err != nil {
		return exit{text: err.Error()}, 0
	}
	return s.watch(ctx, exited), time.Since(s.rec.Since)
}

// asked says whether the end of the child was asked for, and forgets it.
func (s *supervisor) asked() bool {
	path := filepath.Join(s.dir, askedFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	_ = os.Remove(path) // one that stays names a process that is no more
	var p process
	return json.Unmarshal(b, &p) == nil && p == s.rec.Child && p.PID != 0 // a start that failed has no child
}

// rest waits for the end of a service that is not started again: as long as we live nobody starts another supervisor.
func (s *supervisor) rest(ctx context.Context) error {
	s.rec.Ended = true
	if err := s.save(); err != nil {
		return err
	}
	<-ctx.Done()
	return s.end()
}

// exit is how a child ended.
type exit struct {
	text string
	well bool // with status 0
}

// begin takes over the child of an earlier supervisor, or starts one, and answers a channel that tells its end.
func (s *supervisor) begin(ctx context.Context) (<-chan exit, error) {
	if s.rec.Child.alive() {
		return s.followForeign(s.rec.Child)
	}
	if a := s.unit.AwaitAddress; a.IsValid() {
		s.rec.Waiting = "waiting for the address " + a.String()
		if err := s.save(); err != nil {
			return nil, err
		}
		if err := AwaitAddress(ctx, a); err != nil {
			return nil, err
		}
		s.rec.Waiting = ""
	}
	p, err := s.start()
	if err != nil {
		return nil, err
	}
	if s.rec.Child, err = look(p); err != nil {
		return nil, fmt.Errorf("look at the service's process: %w", err)
	}
	s.rec.Since = time.Now()
	ended := make(chan exit, 1)
	go func() { ended <- reap(p) }() // ends with the child
	return ended, s.save()
}

// start starts the program in a session and a cgroup of its own and answers its process number.
func (s *supervisor) start() (int, error) {
	out, err := s.openLog()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("start the service: %w", err)
	}
	defer null.Close()
	attr := &syscall.SysProcAttr{Setsid: true}
	// What an earlier child has started lives on in its cgroup (containers outlive a restart of K3s).
	if _, err := os.Stat(s.rec.Cgroup); err != nil {
		s.rec.Cgroup = makeCgroup(s.unit.Name)
	}
	if s.rec.Cgroup != "" {
		group, err := os.Open(s.rec.Cgroup)
		if err != nil {
			return 0, fmt.Errorf("open the service's cgroup: %w", err)
		}
		defer group.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
	}
	dir := s.unit.Dir
	if dir == "" {
		dir = "/"
	}
	p, err := os.StartProcess(s.unit.Exec[0], s.unit.Exec, &os.ProcAttr{Dir: dir, Env: append(baseEnv(), s.unit.Env...), Files: []*os.File{null, out, out}, Sys: attr})
	if err != nil {
		return 0, fmt.Errorf("start the service: %w", err)
	}
	pid := p.Pid
	return pid, p.Release() // reap waits for it, with all the orphans
}

func baseEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
}

func (s *supervisor) openLog() (*os.File, error) {
	path := s.unit.LogFile
	if path == "" {
		path = os.DevNull
	} else if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the service's log directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the service's log: %w", err)
	}
	return f, nil
}

// reap waits for the child, and for every orphan that ends before it.
func reap(child int) exit {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return exit{text: "lost: " + err.Error()}
		case pid == child && ws.Exited():
			return exit{fmt.Sprintf("exited with status %d", ws.ExitStatus()), ws.ExitStatus() == 0}
		case pid == child && ws.Signaled():
			return exit{text: "ended by signal " + ws.Signal().String()}
		}
	}
}

// followForeign watches a child that isn't ours to wait for.
func (s *supervisor) followForeign(p process) (<-chan exit, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("watch the service's process: %w", err)
	}
	ended := make(chan exit, 1)
	go func() { // ends with the child
		defer unix.Close(fd)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
				ended <- exit{text: "ended under another supervisor"}
				return
			}
		}
	}()
	return ended, nil
}

// watch waits for the child's end and keeps its log within bounds meanwhile.
func (s *supervisor) watch(ctx context.Context, exited <-chan exit) exit {
	tick := time.NewTicker(logCheckEvery)
	defer tick.Stop()
	for {
		select {
		case how := <-exited:
			return how
		case <-ctx.Done():
			return exit{}
		case <-tick.C:
			if err := rotate(s.unit.LogFile); err != nil {
				s.rec.Waiting = err.Error() // shown with the status; the service runs on
			}
		}
	}
}

// rotate copies a large log away and empties it. The child writes with O_APPEND, so it goes on at the new end.
func rotate(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody took it away: the child writes on into what nobody sees
	}
	if err != nil {
		return fmt.Errorf("rotate the log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() < maxLogBytes {
		return err
	}
	old, err := os.OpenFile(path+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("rotate the log: %w", err)
	}
	_, err = io.Copy(old, f)
	return errors.Join(err, old.Close(), f.Truncate(0))
}

// end ends the child, first by asking, then with everything that it has started.
func (s *supervisor) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.unit.grace()+15*time.Second)
	defer cancel()
	if err := s.rec.Child.signal(unix.SIGTERM); err != nil {
		return err
	}
	// A child that stays is killed below.
	_ = await(ctx, s.unit.grace(), "the service's end", func() (bool, error) { return !s.rec.Child.alive(), nil })
	if err := (tree{root: s.rec.Supervisor, main: s.rec.Child, cgroup: s.rec.Cgroup}).kill(ctx); err != nil {
		return err
	}
	s.rec.Child, s.rec.Cgroup, s.rec.Exit = process{}, "", ""
	return s.save()
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
