package netnstest

import (
	"fmt"
	"os"
	"os/signal"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// initCommand is what the test binary is called with to be a machine's first process.
const initCommand = "netnstest-init"

// Command is a function of the test binary that runs as a process of its own; what it returns is the exit code.
type Command func(args []string) int

// Main is TestMain's body: it runs the tests, or the command that the binary was called as.
func Main(m *testing.M, commands map[string]Command) int {
	if len(os.Args) > 1 {
		if os.Args[1] == initCommand {
			return beInit()
		}
		if c, ok := commands[os.Args[1]]; ok {
			return c(os.Args[2:])
		}
	}
	return m.Run()
}

// beInit sets the machine up, says so on descriptor 3 and collects orphans until it is killed.
func beInit() int {
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	ready := os.NewFile(3, "ready")
	if _, err := ready.WriteString("ready\n"); err != nil {
		return 1
	}
	_ = ready.Close()
	for range children {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return 0
}

func setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
