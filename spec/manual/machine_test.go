package manual

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"powernode/internal/rtnl"
	"powernode/platform/provider/local/cgroup"
	"powernode/spec/rig"
)

// machine is one that somebody else runs: systemd as its first process, on an overlay of the host's / that is kept in
// memory and outlives a reboot, in namespaces of its own.
type machine struct {
	name   string
	groups []cgroup.Hierarchy
	links  []link

	holder *exec.Cmd // keeps the memory that the overlay is in
	lease  io.Closer // ends the holder
	boot   *exec.Cmd
	pid    int // of systemd, on the host
}

// link is a cable from the machine to this host: to a bridge, or straight to an address of the host's.
type link struct {
	inside  string // interface in the machine
	address netip.Prefix
	bridge  string
	host    netip.Prefix
}

// holding makes the place for the machine's files and stays until its input ends.
const holding = `mount -t tmpfs -o size=1g,mode=755 tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/root && echo ready && exec cat`

// booting runs as the first process of the machine: it mounts, waits for its links, and becomes systemd.
const booting = `set -e
name=$1 r=/mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work overlay $r
if [ ! -e $r/.prepared ]; then
  rm -rf $r/etc/systemd/system/*.wants $r/etc/systemd/system/powernode-agent.service $r/usr/local/bin/powernode-agent $r/var/lib/powernode-agent
  echo "$name" > $r/etc/hostname; mkdir -p $r/var/log/journal
  tr -d - < /proc/sys/kernel/random/uuid > $r/etc/machine-id # its own: systemd would take the host firmware's
  for u in systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service systemd-udev-settle.service \
    systemd-timesyncd.service systemd-networkd.service systemd-resolved.service systemd-logind.service systemd-modules-load.service \
    systemd-random-seed.service systemd-sysctl.service systemd-remount-fs.service getty.target console-getty.service getty@tty1.service \
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \
    tmp.mount; do
    ln -sf /dev/null $r/etc/systemd/system/$u
  done
  : > $r/etc/fstab; touch $r/.prepared
fi
mount -t proc proc $r/proc; mount -t sysfs sysfs $r/sys
mount -t tmpfs -o mode=755 tmpfs $r/run; mount -t tmpfs -o mode=1777 tmpfs $r/tmp; mount -t tmpfs -o mode=755 tmpfs $r/dev
mkdir -p $r/dev/net $r/dev/pts $r/dev/shm
for d in null zero full random urandom tty net/tun; do : > $r/dev/$d; mount --bind /dev/$d $r/dev/$d; done
mount -t devpts -o newinstance,ptmxmode=0666 devpts $r/dev/pts; ln -s pts/ptmx $r/dev/ptmx
eval "$2"
hostname "$name"
echo mounted; read -r plugged
cd $r; mkdir -p .old; pivot_root . .old; umount -l /.old
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=powernode-spec \
  /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=0 </dev/null >/dev/null 2>&1`

// newMachine makes the place for a machine; start boots it. Its processes end with this one, or by remove.
func newMachine(name string, links ...link) (*machine, error) {
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return nil, err
	}
	m := &machine{name: name, links: links, groups: oneKind(hierarchies)}
	m.holder = exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", holding)
	m.holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := m.holder.StdinPipe()
	if err != nil {
		return nil, err
	}
	m.lease = stdin
	return m, begin(m.holder, "ready")
}

// oneKind leaves version 2 out where version 1 is there too: systemd then lives on version 1 alone.
func oneKind(all []cgroup.Hierarchy) []cgroup.Hierarchy {
	var first []cgroup.Hierarchy
	for _, h := range all {
		if h.Version == 1 {
			first = append(first, h)
		}
	}
	if len(first) == 0 {
		return all
	}
	return first
}

// begin starts a program and waits for the word that it prints first.
func begin(cmd *exec.Cmd, word string) error {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if strings.TrimSpace(line) == word {
		return nil
	}
	return errors.Join(fmt.Errorf("%s said %q, want %q: %s", strings.Join(cmd.Args[:2], " "), line, word, stderr.String()), err)
}

// mountGroups is what booting evaluates to show the machine its control groups.
func (m *machine) mountGroups() string {
	if m.groups[0].Version == 2 {
		return "mount -t cgroup2 cgroup2 $r" + cgroup.Mount
	}
	var b strings.Builder
	b.WriteString("mount -t tmpfs -o mode=755 tmpfs $r" + cgroup.Mount)
	for _, h := range m.groups {
		fmt.Fprintf(&b, "; mkdir -p $r%s; mount -t cgroup -o %s cgroup $r%s", h.Path, h.Options, h.Path)
	}
	return b.String()
}

// start boots the machine and waits until its systemd answers.
func (m *machine) start(ctx context.Context) error {
	if err := cgroup.Make(m.groups, m.name); err != nil {
		return err
	}
	// It joins the machine's control groups first: their namespace begins where its process is.
	m.boot = exec.Command("sh", "-c", `read -r joined; exec nsenter -t "$1" -m unshare -fpmiunC --kill-child --propagation private sh -c "$2" sh "$3" "$4"`,
		"sh", strconv.Itoa(m.holder.Process.Pid), booting, m.name, m.mountGroups())
	m.boot.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := m.boot.StdinPipe()
	if err != nil {
		return err
	}
	join := &joining{m: m, stdin: stdin}
	stdout, err := m.boot.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	m.boot.Stderr = &stderr
	if err := m.boot.Start(); err != nil {
		return err
	}
	if err := join.do(bufio.NewReader(stdout)); err != nil {
		return fmt.Errorf("boot %s: %w: %s", m.name, err, stderr.String())
	}
	return rig.Await(ctx, m.name+" to boot", time.Minute, func(ctx context.Context) (string, error) {
		out, _ := m.run(ctx, "", "systemctl", "is-system-running") // its exit code tells the state too
		if state := strings.TrimSpace(out); state != "running" && state != "degraded" {
			return "systemd says " + state, nil
		}
		return "", nil
	})
}

// joining is the talk with a machine that boots.
type joining struct {
	m     *machine
	stdin io.Writer
}

func (j *joining) do(stdout *bufio.Reader) error {
	if err := cgroup.Join(j.m.groups, j.m.name, j.m.boot.Process.Pid); err != nil {
		return err
	}
	if _, err := io.WriteString(j.stdin, "joined\n"); err != nil {
		return err
	}
	if line, err := stdout.ReadString('\n'); strings.TrimSpace(line) != "mounted" {
		return errors.Join(fmt.Errorf("it said %q", line), err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", j.m.boot.Process.Pid))
	if err != nil {
		return err
	}
	if j.m.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
		return fmt.Errorf("find the first process: %w", err)
	}
	if err := j.m.plug(); err != nil {
		return err
	}
	_, err = io.WriteString(j.stdin, "plugged\n")
	return err
}

// hardware is a link's address on the wire, the same after a reboot as it is of a real card.
func (m *machine) hardware(n int) string {
	sum := sha256.Sum256([]byte(m.name))
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], n)
}

// plug gives the machine its links. Their ends here go with its network namespace.
func (m *machine) plug() error {
	var script strings.Builder
	inside := func(format string, args ...any) {
		fmt.Fprintf(&script, "nsenter -t %d -n ip %s\n", m.pid, fmt.Sprintf(format, args...))
	}
	inside("link set lo up")
	for n, l := range m.links {
		port := fmt.Sprintf("%s-%d", m.name, n)
		fmt.Fprintf(&script, "ip link add %s type veth peer name %s address %s netns %d\n", port, l.inside, m.hardware(n), m.pid)
		if l.bridge != "" {
			fmt.Fprintf(&script, "ip link set %s master %s\n", port, l.bridge)
		} else {
			fmt.Fprintf(&script, "ip -6 addr add %s dev %s nodad\n", l.host, port)
		}
		fmt.Fprintf(&script, "ip link set %s up\n", port)
		inside("-6 addr add %s dev %s nodad", l.address, l.inside)
		inside("link set %s up", l.inside)
	}
	out, err := exec.Command("sh", "-ec", script.String()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("plug %s in: %w: %s", m.name, err, out)
	}
	return nil
}

// run runs a program in the machine, with text as its input, and answers what it printed.
func (m *machine) run(ctx context.Context, input string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(m.pid), "-m", "-u", "-i", "-n", "-p", "-C", "--root=/proc/" + strconv.Itoa(m.pid) + "/root", "--wd=/", "--"}, argv...)...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(argv, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// stop has systemd shut the machine down, and waits for the end of all that it was.
func (m *machine) stop(ctx context.Context) error {
	if m.boot == nil {
		return nil
	}
	_, asked := m.run(ctx, "", "systemctl", "--no-block", "poweroff")
	ended := make(chan struct{})
	boot := m.boot
	go func() {
		defer close(ended)
		_ = boot.Wait() // however it ended: what is left of it is looked for below
	}()
	limit, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	select {
	case <-ended:
	case <-limit.Done():
		_ = boot.Process.Kill()
		<-ended
		asked = errors.Join(asked, errors.New("the machine did not shut down in time"))
	}
	m.boot, m.pid = nil, 0
	limit, cancel = context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(asked, cgroup.Kill(m.groups, m.name), cgroup.Remove(limit, m.groups, m.name))
}

// reboot is what a person at the machine does.
func (m *machine) reboot(ctx context.Context) error {
	if err := m.stop(ctx); err != nil {
		return err
	}
	return m.start(ctx)
}

// remove ends the machine and all that it was made of.
func (m *machine) remove(ctx context.Context) error {
	err := m.stop(ctx)
	err = errors.Join(err, m.lease.Close())
	_ = m.holder.Wait() // cat at its input's end
	for n := range m.links {
		err = errors.Join(err, removeLink(fmt.Sprintf("%s-%d", m.name, n)))
	}
	return err
}

// removeLink takes a cable away now; the kernel does it too, some time after the end of the machine's namespace, and may come
// between any two steps here.
func removeLink(name string) error {
	found, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(found)
	}
	if err := rtnl.UnlessGone(err); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
