package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"powernode/platform/provider"
	"powernode/platform/provider/local/boot"
	"powernode/platform/provider/local/cgroup"
)

const (
	startTimeout = 20 * time.Second
	// stopTimeout is more than the first process gives its own children.
	stopTimeout = boot.Grace + 5*time.Second
	killTimeout = 10 * time.Second
)

// process names one process for good: a pid alone is used again.
type process struct {
	PID    int    `json:"pid"`
	Start  string `json:"start"`   // in ticks since the host's boot
	BootID string `json:"boot_id"` // of the host
}

func identify(pid int) (process, error) {
	start, _, err := stat(pid)
	if err != nil {
		return process{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	id, err := hostBootID()
	return process{PID: pid, Start: start, BootID: id}, err
}

func hostBootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// stat reads start time and state of a process.
func stat(pid int) (start, state string, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", "", err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name may hold anything
	if len(fields) < 20 {
		return "", "", fmt.Errorf("stat of process %d has %d fields", pid, len(fields))
	}
	return fields[19], fields[0], nil
}

// alive says whether it runs. A dead child of this process is reaped on the way: nobody waits for what outlives us.
func (pr process) alive() bool {
	if pr.PID == 0 {
		return false
	}
	start, state, err := stat(pr.PID)
	if err != nil || start != pr.Start {
		return false
	}
	if id, err := hostBootID(); err != nil || id != pr.BootID {
		return false
	}
	if state == "Z" || state == "X" {
		// 0: our child, whose other threads are still ending; it can't be reaped yet.
		reaped, err := unix.Wait4(pr.PID, nil, unix.WNOHANG, nil)
		return err == nil && reaped == 0
	}
	return true
}

// signal reaches this very process or nobody.
func (pr process) signal(s unix.Signal) error {
	fd, err := unix.PidfdOpen(pr.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pr.PID, err)
	}
	defer unix.Close(fd)
	if !pr.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pr.PID, err)
	}
	return nil
}

// awaitDeath waits until the process is gone or the context ends.
func (pr process) awaitDeath(ctx context.Context) error {
	_, err := await(ctx, func() (func(), bool, error) { return nil, !pr.alive(), nil })
	return err
}

// awaitReaped gives the host's first process, or another platform, a moment to take a dead one off the list.
func (pr process) awaitReaped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, _ = await(ctx, func() (func(), bool, error) {
		start, _, err := stat(pr.PID)
		return nil, err != nil || start != pr.Start, nil
	})
}

func (r record) alive() bool { return r.Init.alive() }

// start boots a machine whose files are there. The order makes it safe to be killed anywhere: on record, then the
// process on record, then the link, then the last word, without which the first process ends by itself.
func (p *Provider) start(ctx context.Context, inst installation, rec record, enrollment []byte) (record, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if rec.Phase != phaseCreating {
		rec.Phase = phaseStarting
	}
	rec.Init = process{}
	if err := p.save(rec); err != nil {
		return rec, err
	}
	agent, err := p.placeAgent(rec.ID)
	if err != nil {
		return rec, err
	}
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return rec, err
	}
	if err := cgroup.Make(hierarchies, inst.groupOf(rec)); err != nil {
		return rec, err
	}
	first, err := fork(agent, rec.Kind == kindWorkstation)
	if err != nil {
		return rec, err
	}
	defer first.close()
	stop := context.AfterFunc(ctx, first.close)
	defer stop()
	if rec.Init, err = identify(first.pid); err != nil {
		return rec, err
	}
	p.born.add(rec.Init)
	if err := p.save(rec); err != nil {
		return rec, err
	}
	if err := cgroup.Join(hierarchies, inst.groupOf(rec), first.pid); err != nil {
		return rec, err
	}
	spec := boot.Spec{
		MachineID: rec.ID, Hostname: rec.Name, Root: p.rootDir(rec.ID), UsrLocal: p.usrLocalDir(rec.ID), BootID: uuid.NewString(),
		Addresses: inst.prefixes(rec.Index), Gateways: inst.addresses(1),
	}
	if err := first.raise(spec, enrollment, func() error { return inst.plug(rec.Index, first.pid) }); err != nil {
		return rec, errors.Join(err, context.Cause(ctx))
	}
	rec.Phase = phaseRunning
	return rec, p.save(rec)
}

// children are the first processes that this process started. Nobody waits for them, since they outlive us; those that
// another process ended are reaped at the next look.
type children struct {
	mu  sync.Mutex
	all map[process]bool
}

func (c *children) add(pr process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[process]bool{}
	}
	c.all[pr] = true
}

// reap takes the dead off the list. One that was reaped elsewhere may have left its number to another child of ours, which
// somebody waits for.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pr := range c.all {
		if !pr.alive() { // which reaps it
			delete(c.all, pr)
		}
	}
}

// firstProcess is a machine's, while it starts.
type firstProcess struct {
	pid     int
	orders  *os.File
	answers *os.File
}

func (f firstProcess) close() {
	_ = f.orders.Close()
	_ = f.answers.Close()
}

// fork starts the first process, which waits for orders.
func fork(agent string, idle bool) (firstProcess, error) {
	ordersIn, orders, err := os.Pipe()
	if err != nil {
		return firstProcess{}, fmt.Errorf("make pipe: %w", err)
	}
	defer ordersIn.Close()
	answers, answersOut, err := os.Pipe()
	if err != nil {
		_ = orders.Close()
		return firstProcess{}, fmt.Errorf("make pipe: %w", err)
	}
	defer answersOut.Close()
	f := firstProcess{orders: orders, answers: answers}
	cmd := exec.Command(agent, "init")
	if idle {
		cmd.Args = append(cmd.Args, "--idle")
	}
	cmd.Args[0] = "powernode-agent"
	cmd.Dir, cmd.Env = "/", []string{"container=powernode-local"}
	cmd.ExtraFiles = []*os.File{ordersIn, answersOut} // boot.OrdersFD, boot.AnswersFD
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if err := cmd.Start(); err != nil {
		f.close()
		return firstProcess{}, fmt.Errorf("start first process: %w", err)
	}
	f.pid = cmd.Process.Pid
	_ = cmd.Process.Release() // it outlives this process; alive reaps it where it does not
	return f, nil
}

// raise tells the first process what to be, plugs it in, and waits until it is up.
func (f firstProcess) raise(spec boot.Spec, enrollment []byte, plug func() error) error {
	if _, err := f.orders.Write([]byte{'c'}); err != nil {
		return fmt.Errorf("order first process: %w", err)
	}
	enc := json.NewEncoder(f.orders)
	if err := enc.Encode(spec); err != nil {
		return fmt.Errorf("order first process: %w", err)
	}
	if err := plug(); err != nil {
		return err
	}
	sent := enc.Encode(boot.Go{Enrollment: enrollment})
	var answer boot.Answer
	err := json.NewDecoder(f.answers).Decode(&answer)
	switch {
	case err == nil && answer.Error != "":
		return fmt.Errorf("first process of the machine: %s", answer.Error)
	case errors.Is(err, io.EOF):
		return errors.Join(errors.New("first process of the machine ended without a word"), sent)
	case err != nil:
		return fmt.Errorf("hear first process: %w", err)
	}
	return nil
}

// cameUp says whether a start that was cut off came through: then the first process set its marker. One that had not
// heard the last word is about to end.
func (p *Provider) cameUp(ctx context.Context, rec record) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	up := false
	_, err := await(ctx, func() (func(), bool, error) {
		if !rec.alive() {
			return nil, true, nil
		}
		var marker struct {
			MachineID string `json:"machine_id"`
		}
		text, err := readInside(rec.Init.PID, boot.MarkerPath)
		up = err == nil && json.Unmarshal(text, &marker) == nil && marker.MachineID == rec.ID
		return nil, up, nil
	})
	return err == nil && up
}

// halt ends a machine's processes and keeps its files, and an enrolment that it had not used.
func (p *Provider) halt(ctx context.Context, rec record, mode provider.StopMode) (record, error) {
	if rec.Phase == phaseStopped {
		return rec, nil
	}
	rec.Phase = phaseStopping
	if err := p.save(rec); err != nil {
		return rec, err
	}
	if err := p.keepEnrollment(rec); err != nil {
		return rec, err
	}
	if mode == provider.Graceful && rec.alive() {
		if err := rec.Init.signal(unix.SIGTERM); err != nil {
			return rec, err
		}
		grace, cancel := context.WithTimeout(ctx, stopTimeout)
		_ = rec.Init.awaitDeath(grace) // if it does not, it is killed
		cancel()
	}
	if err := p.end(ctx, rec); err != nil {
		return rec, err
	}
	rec.Phase, rec.Init = phaseStopped, process{}
	return rec, p.save(rec)
}

func (p *Provider) keepEnrollment(rec record) error {
	if !rec.alive() {
		return nil
	}
	text, err := readInside(rec.Init.PID, boot.EnrollmentPath)
	if err != nil {
		return nil // used, or the machine is ending by itself
	}
	if err := writeFile(filepath.Join(p.machineDir(rec.ID), enrollmentFile), text); err != nil {
		return fmt.Errorf("keep enrolment: %w", err)
	}
	return nil
}

// end kills whatever runs in the machine and removes its link and control groups: what it had of the host, files aside.
func (p *Provider) end(ctx context.Context, rec record) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	inst, err := p.loadInstallation()
	if err != nil {
		return err
	}
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := rec.Init.kill(); err != nil {
		return err
	}
	if err := cgroup.Kill(hierarchies, inst.groupOf(rec)); err != nil {
		return err
	}
	if err := rec.Init.awaitDeath(ctx); err != nil {
		return fmt.Errorf("wait for the end of machine %s: %w", rec.ID, err)
	}
	if err := inst.unplug(rec.Index); err != nil {
		return err
	}
	rec.Init.awaitReaped(ctx)
	return cgroup.Remove(ctx, hierarchies, inst.groupOf(rec))
}

func (pr process) kill() error {
	if !pr.alive() {
		return nil
	}
	return pr.signal(unix.SIGKILL)
}

// remove ends a machine for good: everything it had, then its record, then its lock.
func (p *Provider) remove(ctx context.Context, rec record) error {
	if err := p.dismantle(ctx, rec); err != nil {
		return err
	}
	p.log.Info().Str("machine", rec.ID).Str("name", rec.Name).Msg("local machine removed")
	return p.removeDir(rec.ID)
}

// dismantle is remove without the lock.
func (p *Provider) dismantle(ctx context.Context, rec record) error {
	rec.Phase = phaseRemoving
	if err := p.save(rec); err != nil {
		return err
	}
	if err := p.end(ctx, rec); err != nil {
		return err
	}
	return p.removeFiles(rec.ID)
}

// removeFiles removes a machine's files, and its record after them.
func (p *Provider) removeFiles(id string) error {
	for _, name := range []string{"root", "usr-local", enrollmentFile, recordFile} {
		if err := os.RemoveAll(filepath.Join(p.machineDir(id), name)); err != nil {
			return fmt.Errorf("remove files of machine: %w", err)
		}
	}
	return nil
}

// removeDir removes what is left, the lock last; who waits for that lock notices. From then on the folder may be another's,
// who makes it anew: it is removed only where it is empty.
func (p *Provider) removeDir(id string) error {
	dir := p.machineDir(id)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove folder of machine: %w", err)
	}
	for _, e := range entries {
		if e.Name() == lockFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove folder of machine: %w", err)
		}
	}
	for _, path := range []string{filepath.Join(dir, lockFile), dir} {
		err := os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove folder of machine: %w", err)
		}
	}
	return nil
}
