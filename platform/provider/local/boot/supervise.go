package boot

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// Times of the first process.
const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
	settled      = 10 * time.Second // an agent that ran this long starts again without waiting
	// Grace is how long processes have after SIGTERM before they are killed.
	Grace = 10 * time.Second
)

// supervise is the machine's life: it reaps, keeps the agent running, and returns after SIGTERM when nothing is left.
func supervise(log zerolog.Logger, idle bool) error {
	signals := make(chan os.Signal, 128)
	// All of these: one without a handler of ours would end the runtime, and with it the machine.
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPWR, unix.SIGALRM)
	s := supervisor{log: log, idle: idle, signals: signals, restart: time.NewTimer(0), backoff: backoffFirst}
	for {
		select {
		case <-s.restart.C:
			s.startAgent()
		case sig := <-signals:
			switch sig {
			case unix.SIGCHLD:
				s.reap()
			case unix.SIGTERM:
				s.end()
				return nil
			}
		}
	}
}

type supervisor struct {
	log     zerolog.Logger
	idle    bool
	signals chan os.Signal
	restart *time.Timer
	agent   int // pid, 0: not running
	started time.Time
	backoff time.Duration
}

// startAgent forks without os/exec: waiting for children is reap's alone.
func (s *supervisor) startAgent() {
	if s.idle {
		return
	}
	pid, err := forkAgent()
	if err != nil {
		s.log.Error().Err(err).Msg("agent does not start")
		s.again()
		return
	}
	s.agent, s.started = pid, time.Now()
	s.log.Info().Int("pid", pid).Msg("agent started")
}

func forkAgent() (int, error) {
	out, err := openRotated(AgentLog)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	args := []string{"powernode-agent", "run", "--state-dir", AgentStateDir, "--enrollment", EnrollmentPath}
	return syscall.ForkExec(AgentPath, args, &syscall.ProcAttr{
		Dir: "/", Env: environment(), Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// again plans the next start: soon, and less soon the more often it fails.
func (s *supervisor) again() {
	if time.Since(s.started) > settled {
		s.backoff = backoffFirst
	}
	s.restart.Reset(s.backoff)
	s.backoff = min(2*s.backoff, backoffMost)
}

// reap waits for every child that has died and says whether any is left.
func (s *supervisor) reap() (left bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false
		case pid == 0:
			return true
		case pid == s.agent:
			s.agent = 0
			s.log.Warn().Int("pid", pid).Int("exit", status.ExitStatus()).Str("signal", signalName(status)).Msg("agent ended")
			s.again()
		}
	}
}

func signalName(status unix.WaitStatus) string {
	if !status.Signaled() {
		return ""
	}
	return unix.SignalName(status.Signal())
}

// end stops everything: with SIGTERM, then with SIGKILL.
func (s *supervisor) end() {
	s.log.Info().Msg("machine stops")
	s.restart.Stop()
	s.idle = true
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, Grace}, {unix.SIGKILL, 2 * time.Second}} {
		if err := unix.Kill(-1, step.signal); errors.Is(err, unix.ESRCH) && !s.reap() {
			return
		}
		if s.drain(step.wait) {
			return
		}
	}
}

func (s *supervisor) drain(wait time.Duration) bool {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for s.reap() {
		select {
		case <-s.signals:
		case <-deadline.C:
			return false
		}
	}
	return true
}
