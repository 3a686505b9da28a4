package wireguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// socketDir is where wireguard-go puts control sockets and wgctrl looks for them.
const socketDir = "/var/run/wireguard"

func socketPath(name string) string { return filepath.Join(socketDir, name+".sock") }

// Device is a userspace device that a process is to be.
type Device struct {
	Name string
	MTU  int
	Log  zerolog.Logger
	// Ready, if not nil, is called once the control socket answers.
	Ready func() error
}

// RunDevice is a userspace WireGuard device until ctx ends, its link is deleted or its control socket is removed. The
// process that calls it is the device: addresses and routes of the interface go with it.
func RunDevice(ctx context.Context, d Device) error {
	t, err := tun.CreateTUN(d.Name, d.MTU)
	if err != nil {
		return fmt.Errorf("make the TUN interface %s (is /dev/net/tun there?): %w", d.Name, err)
	}
	// Nothing is to be heard on a tunnel but what is sent through it: no link-local address, no solicitations.
	if err := onLink(d.Name, func(l netlink.Link) error { return netlink.LinkSetIP6AddrGenMode(l, 1) }); err != nil {
		d.Log.Warn().Err(err).Msg("the interface keeps its link-local address")
	}
	device := wg.NewDevice(t, conn.NewDefaultBind(), &wg.Logger{
		Verbosef: wg.DiscardLogf,
		Errorf:   func(format string, args ...any) { d.Log.Error().Msgf(format, args...) },
	})
	defer device.Close()
	file, err := ipc.UAPIOpen(d.Name)
	if err != nil {
		return fmt.Errorf("open the control socket: %w", err)
	}
	listener, err := ipc.UAPIListen(d.Name, file)
	if err != nil {
		return fmt.Errorf("listen on the control socket: %w", err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go device.IpcHandle(c) // ends with its connection, at the latest with the process
		}
	}()
	if d.Ready != nil {
		if err := d.Ready(); err != nil {
			return fmt.Errorf("tell that the device is ready: %w", err)
		}
	}
	select {
	case <-ctx.Done():
	case <-gone:
	case <-device.Wait():
	}
	_ = listener.Close()
	return nil
}

// readyFD is the descriptor on which a detached device says that it is ready, or why it is not.
const readyFD = 3

// ReadyPipe answers a Device's Ready for a process that Detach started.
func ReadyPipe() func() error {
	return func() error {
		f := os.NewFile(readyFD, "ready")
		defer f.Close()
		_, err := f.WriteString("ready\n")
		return err
	}
}

// Detach starts argv in a session of its own, with its output going to a log file, and returns when it has said that
// it is ready. The caller is meant to exit then: the process becomes init's child and outlives everybody.
func Detach(ctx context.Context, argv []string, logPath string) error {
	log, err := openLog(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer read.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{write} // becomes readyFD
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = write.Close()
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	_ = write.Close()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(awaitLimit)
	}
	_ = read.SetReadDeadline(deadline)
	if said, err := io.ReadAll(io.LimitReader(read, 64)); err != nil || string(said) != "ready\n" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("the device did not become ready: %s", lastLine(logPath))
	}
	return cmd.Process.Release()
}

// logLimit keeps the log of a device that fails again and again from growing without end.
const logLimit = 1 << 20

func openLog(path string) (*os.File, error) {
	if path == "" {
		path = os.DevNull
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() > logLimit {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the device's log: %w", err)
	}
	return f, nil
}

func lastLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return "it said nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

// deviceProcess starts, finds and ends the processes that are userspace devices.
type deviceProcess struct {
	binary string
	logDir string
	spawn  func(ctx context.Context, name string, argv []string) error
}

func newDeviceProcess(o Options) deviceProcess {
	p := deviceProcess{binary: o.AgentBinary, logDir: filepath.Join(o.StateDir, "log"), spawn: o.Spawn}
	if p.spawn == nil {
		p.spawn = p.detached
	}
	return p
}

func (p deviceProcess) start(ctx context.Context, name string, mtu int) error {
	if err := p.end(ctx, name); err != nil { // what is left of one whose link is gone
		return err
	}
	binary := p.binary
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			return fmt.Errorf("find the agent's program: %w", err)
		}
	}
	argv := []string{binary, "device-run", "--name", name, "--mtu", strconv.Itoa(mtu)}
	if err := p.spawn(ctx, name, argv); err != nil {
		return fmt.Errorf("start the process of %s: %w", name, err)
	}
	return nil
}

// detached lets a process between do the starting, so that the device is nobody's child and leaves no zombie.
func (p deviceProcess) detached(ctx context.Context, name string, argv []string) error {
	if err := os.MkdirAll(p.logDir, 0o700); err != nil {
		return fmt.Errorf("make the log directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	argv = append(argv, "--detach", "--log", filepath.Join(p.logDir, name+".log"))
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// owner is the process that listens on a device's control socket, 0 when there is none.
func (p deviceProcess) owner(name string) (int, error) {
	c, err := net.DialTimeout("unix", socketPath(name), answerTimeout)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for the process of %s: %w", name, err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, fmt.Errorf("look for the process of %s: %w", name, credErr)
	}
	return int(cred.Pid), nil
}

// end ends the process of a device whose link is gone, and removes the socket that a dead one left.
func (p deviceProcess) end(ctx context.Context, name string) error {
	owner, err := p.owner(name)
	if err != nil {
		return err
	}
	return p.ended(ctx, name, owner)
}

// endGrace is how long a device gets to notice that its link is gone.
const endGrace = time.Second

// ended waits for a process whose link was taken away, ends it when it doesn't by itself, and cleans its socket up.
func (p deviceProcess) ended(ctx context.Context, name string, pid int) error {
	if pid > 0 {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("watch process %d: %w", pid, err)
		}
		if err == nil {
			defer unix.Close(fd)
			if err := endProcess(fd, pid, name); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(socketPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a stale socket: %w", err)
	}
	return ctx.Err()
}

func endProcess(fd, pid int, name string) error {
	if exited(fd, endGrace) {
		return nil
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at process %d: %w", pid, err)
	}
	ending := len(cmdline) == 0 // a process that exits gives its memory back first, and its command line with it
	if !ending && !strings.Contains(string(cmdline), "device-run\x00--name\x00"+name+"\x00") {
		return fmt.Errorf("process %d serves %s but is not ours", pid, name)
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
			return nil
		}
		if exited(fd, endGrace) {
			return nil
		}
	}
	return fmt.Errorf("process %d of %s does not end", pid, name)
}

func exited(fd int, within time.Duration) bool {
	deadline := time.Now().Add(within)
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(left.Milliseconds())))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}
