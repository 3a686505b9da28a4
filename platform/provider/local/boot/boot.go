package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// Options of the first process.
type Options struct {
	Idle    bool // no agent: an operator's workstation
	Entered bool // the second of the two stages
}

// Run is the first process. It returns when the machine has ended.
func Run(o Options) error {
	if os.Getpid() != 1 {
		return errors.New("init is the first process of a local machine: the platform starts it")
	}
	unix.CloseOnExec(AnswersFD)
	unix.CloseOnExec(OrdersFD)
	answers := os.NewFile(AnswersFD, "answers")
	if !o.Entered {
		return answer(answers, enter(o))
	}
	orders := os.NewFile(OrdersFD, "orders")
	log, err := start(o, orders)
	if err := answer(answers, err); err != nil {
		return err
	}
	return supervise(log, o.Idle)
}

// answer tells the starter how the start went. A starter that is gone by now is no reason to end the machine.
func answer(w io.WriteCloser, err error) error {
	var a Answer
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(w).Encode(a)
	_ = w.Close()
	return err
}

// enter waits for one byte, which says that this process is in its control groups, takes them as the root of a
// cgroup namespace, and starts itself again: a namespace is a thread's, and only exec makes it the process's.
func enter(o Options) error {
	runtime.LockOSThread()
	var b [1]byte
	if n, err := unix.Read(OrdersFD, b[:]); n != 1 {
		return fmt.Errorf("wait for control groups: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare control groups: %w", err)
	}
	args := []string{"powernode-agent", "init", "--entered"}
	if o.Idle {
		args = append(args, "--idle")
	}
	for _, fd := range []uintptr{OrdersFD, AnswersFD} {
		if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep pipe open: %w", err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	return fmt.Errorf("enter second stage: %w", unix.Exec(program, args, environment()))
}

// start makes the machine. The marker is its last step.
func start(o Options, orders io.ReadCloser) (zerolog.Logger, error) {
	defer orders.Close()
	log := zerolog.Nop()
	dec := json.NewDecoder(orders)
	var spec Spec
	if err := dec.Decode(&spec); err != nil {
		return log, fmt.Errorf("read machine: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return log, fmt.Errorf("set host name: %w", err)
	}
	if err := mountAll(spec); err != nil {
		return log, err
	}
	log, err := openLog()
	if err != nil {
		return log, err
	}
	var word Go
	if err := dec.Decode(&word); err != nil {
		return log, fmt.Errorf("wait for the last word: %w", err)
	}
	if err := configureNetwork(spec); err != nil {
		return log, err
	}
	if len(word.Enrollment) > 0 && !o.Idle {
		if err := os.WriteFile(EnrollmentPath, word.Enrollment, 0o600); err != nil {
			return log, fmt.Errorf("write enrolment: %w", err)
		}
	}
	log.Info().Str("machine", spec.MachineID).Str("boot_id", spec.BootID).Msg("machine is up")
	return log, writeMarker(spec)
}

func writeMarker(spec Spec) error {
	text, err := json.Marshal(map[string]string{"machine_id": spec.MachineID, "boot_id": spec.BootID})
	if err != nil {
		return fmt.Errorf("encode marker: %w", err)
	}
	tmp := MarkerPath + ".new"
	if err := os.WriteFile(tmp, text, 0o644); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	if err := os.Rename(tmp, MarkerPath); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	return nil
}

// openLog makes the log inside the machine this process's own and its standard error: no file of the host stays open.
func openLog() (zerolog.Logger, error) {
	f, err := openRotated(InitLog)
	if err != nil {
		return zerolog.Nop(), err
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return zerolog.Nop(), fmt.Errorf("redirect output: %w", err)
		}
	}
	return zerolog.New(f).With().Timestamp().Logger(), nil
}

// maxLog is where a log is put aside; one older one is kept.
const maxLog = 16 << 20

func openRotated(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make log folder: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("put log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// environment is all that a machine's processes start with: nothing of the host's.
func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "container=powernode-local",
	}
}
