package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"powernode/platform/provider"
	"powernode/platform/provider/local"
	"powernode/platform/provider/local/boot"
	"powernode/platform/provider/providertest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) provider.Provider {
		p, _ := newProvider(t)
		return p
	})
}

func TestMachineHasNamespacesAndFilesOfItsOwn(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	if err := os.WriteFile(filepath.Join(state, "powernode.db"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m := create(t, p, "node-1", nil)
	t.Logf("machine made in %v", time.Since(began).Round(time.Millisecond))
	other := create(t, p, "node-2", nil)

	for _, kind := range []string{"net", "mnt", "pid", "ipc", "uts", "cgroup"} {
		host, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		a, b := sh(t, p, m, "readlink /proc/1/ns/"+kind), sh(t, p, other, "readlink /proc/1/ns/"+kind)
		if a == host || b == host || a == b {
			t.Errorf("namespace %s: host %s, machines %s and %s", kind, host, a, b)
		}
	}
	for _, tt := range []struct{ name, script, want string }{
		{"host name", "hostname; cat /etc/hostname", "node-1\nnode-1"},
		{"no processes but its own", "cat /proc/1/comm; cat /proc/[0-9]*/comm 2>/dev/null | grep -v -x -e bash -e cat -e grep -e powernode-agent", "powernode-agent"},
		{"state directory", "ls " + state + " 2>&1 | sed 's/.*: //'", "No such file or directory"},
		{"the host's home", "ls -A /root", ""},
		{"no file of the host is open in the first process", "ls -l /proc/1/fd | grep -v -e pipe: -e anon_inode: -e /dev/null -e /var/log/ -e total", ""},
		{"programs are read-only", "touch /usr/bin/x 2>&1 | sed 's/.*: //'", "Read-only file system"},
		{"own files are writable", "touch /etc/x /var/x /usr/local/bin/x /run/x /root/x /tmp/x /dev/shm/x && echo yes", "yes"},
		{"no password is there", "ls /etc/shadow /etc/ssh /etc/ssl/private 2>/dev/null", ""},
		{"control groups start at the machine", "cut -d: -f3 /proc/1/cgroup | sort -u", "/\n/init"},
		{"a resolver that fails at once", "grep -c nameserver /etc/resolv.conf", "0"},
		{"a default route in both families", "ip route show default | wc -l; ip -6 route show default | wc -l", "1\n1"},
		{"tunnels can be made", "test -c /dev/net/tun && ip tuntap add mode tun name t0 && ip link del t0 && echo yes", "yes"},
		{"mounts are shared inside", "findmnt -no PROPAGATION /", "shared"},
		{"no mount of the host", "cut -d' ' -f2 /proc/mounts | grep -v -E '^/(proc|sys|dev|run|tmp)' | xargs", "/ /usr /etc/alternatives /usr/local"},
		{"the host's alternatives lead to programs", "awk 'BEGIN { print 1 }'", "1"},
		{"no link of the host", "ls -A /sys/class/net | xargs", "eth0 lo"},
	} {
		if got := sh(t, p, m, tt.script+"; true"); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if _, err := os.Stat("/etc/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file made in the machine is on the host: %v", err)
	}
}

func TestMachineReachesThePlatformAndOtherMachinesAlone(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	api, err := p.AgentAPIAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open, shut := listen(t, api.String()), listen(t, "::")
	outside := makeOutside(t)
	enrollment := fmt.Appendf(nil, `{"platform_urls": ["https://%s"]}`, netip.AddrPortFrom(api, open))
	a, b := create(t, p, "node-1", enrollment), create(t, p, "node-2", enrollment)
	api4 := gateway4(t, p, a)

	for _, tt := range []struct {
		name, script string
		reaches      bool
	}{
		{"the platform's port", tcp(api, open, answered), true},
		{"another port of the host", tcp(api, shut, silent), false},
		{"another port of the host by IPv4", tcp(api4, shut, silent), false},
		{"another address of the host", tcp(outside.host, shut, silent), false},
		{"the host by ICMP", ping(api, silent), false},
		{"outside", tcp(outside.address, outside.port, silent), false},
		{"outside by ICMP", ping(outside.address, silent), false},
		{"the other machine by ICMP", ping(b.PrivateAddress, answered), true},
	} {
		if got := ok(t, p, a, tt.script); got != tt.reaches {
			t.Errorf("reaches %s: %v, want %v", tt.name, got, tt.reaches)
		}
	}
	// The host does reach what the machine did not.
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(outside.host, shut), netip.AddrPortFrom(outside.address, outside.port)} {
		conn, err := net.DialTimeout("tcp", to.String(), answered)
		if err != nil {
			t.Errorf("the host itself does not reach %s, so the test shows nothing: %v", to, err)
			continue
		}
		_ = conn.Close()
	}
	// A port that is opened later is reached.
	if err := p.AllowAgentAPI(t.Context(), shut); err != nil {
		t.Fatal(err)
	}
	if !ok(t, p, a, tcp(api, shut, answered)) || !ok(t, p, a, tcp(api, open, answered)) {
		t.Error("a port that was opened is not reached")
	}
}

func TestInstallationsAreApart(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	q, _ := newProvider(t)
	a, b := create(t, p, "node-1", nil), create(t, q, "node-1", nil)
	if ok(t, p, a, ping(b.PrivateAddress, silent)) {
		t.Error("a machine reaches one of another installation")
	}
	if err := p.Terminate(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	if m, err := q.Get(t.Context(), b.ID); err != nil || m.Status != provider.StatusRunning {
		t.Errorf("another installation's machine is %v, %v", m.Status, err)
	}
}

func TestAgentAPIAddressStays(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	first, err := p.AgentAPIAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listen(t, first.String()) // without a machine on the bridge
	if err := p.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := local.New(local.Options{StateDir: state, Log: zerolog.Nop()}).AgentAPIAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first != again {
		t.Errorf("address was %s, is %s", first, again)
	}
}

func TestAgentIsStartedAgain(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	m := create(t, p, "node-1", []byte(`{"token": "t"}`))
	first := await(t, func() (string, bool) { s := sh(t, p, m, "cat /run/agent.pid 2>/dev/null; true"); return s, s != "" })
	if got := sh(t, p, m, "stat -c %a "+boot.AgentStateDir+"/received; cat "+boot.AgentStateDir+"/received; ls "+boot.EnrollmentPath+" 2>/dev/null; true"); got != "600\n"+`{"token": "t"}` {
		t.Errorf("enrolment: %q", got)
	}
	sh(t, p, m, "kill -KILL "+first)
	second := await(t, func() (string, bool) {
		s := sh(t, p, m, "cat /run/agent.pid")
		return s, s != first && ok(t, p, m, "kill -0 "+s)
	})
	t.Logf("agent was %s, is %s", first, second)
	sh(t, p, m, "for i in 1 2 3; do setsid sh -c 'true & true &' & done; wait")
	await(t, func() (string, bool) {
		s := sh(t, p, m, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null; true")
		return s, s == ""
	})
	for _, signal := range []string{"HUP", "INT", "USR1", "PIPE"} {
		sh(t, p, m, "kill -"+signal+" 1")
	}
	if got := sh(t, p, m, "cat /run/agent.pid"); got != second {
		t.Errorf("after signals to the first process the agent is %s, was %s", got, second)
	}
}

func TestStartBootsAnewFromTheSameFiles(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	m := create(t, p, "node-1", []byte(`{"wait": true}`))
	const bootID = "cat /proc/sys/kernel/random/boot_id"
	sh(t, p, m, "echo kept > /etc/kept; echo kept > /var/lib/kept; echo gone > /run/gone; echo gone > /tmp/gone")
	before := sh(t, p, m, bootID)
	if err := p.Stop(t.Context(), m.ID, provider.Graceful); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, state); strings.Contains(got.links, m.Name) || got.processes != "" {
		t.Errorf("a stopped machine has processes: %s", got.processes)
	}
	if err := p.Start(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, p, m, "cat /etc/kept /var/lib/kept; ls /run/gone /tmp/gone 2>/dev/null; true"); got != "kept\nkept" {
		t.Errorf("files after start: %q", got)
	}
	if after := sh(t, p, m, bootID); after == before {
		t.Errorf("boot id stayed %s", after)
	}
	if got := sh(t, p, m, "stat -c %a "+boot.EnrollmentPath+"; cat "+boot.EnrollmentPath); got != "600\n"+`{"wait": true}` {
		t.Errorf("an enrolment that was not used: %q", got)
	}
	// The first process may end by itself, too.
	entry := entries(t, p)[0]
	if err := unix.Kill(entry.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, func() (string, bool) {
		got, err := p.Get(t.Context(), m.ID)
		return string(got.Status), err == nil && got.Status == provider.StatusStopped
	})
	if err := p.Reboot(t.Context(), m.ID, provider.Graceful); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, p, m, "cat /etc/kept"); got != "kept" {
		t.Errorf("files after reboot: %q", got)
	}
}

// The machine's root may make links; what the host reads and writes of a machine must not follow them out.
func TestLinksOfAMachineDoNotLeadOut(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	secret := filepath.Join(state, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := create(t, p, "node-1", []byte(`{"wait": true}`))
	sh(t, p, m, "ln -sf "+secret+" "+boot.EnrollmentPath)
	if err := p.Stop(t.Context(), m.ID, provider.PowerOff); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, p, m, "cat "+boot.EnrollmentPath+" 2>/dev/null; true"); got != "" {
		t.Errorf("the machine was handed %q", got)
	}
	out := t.TempDir()
	sh(t, p, m, "rm -r /usr/local/libexec && ln -s "+out+" /usr/local/libexec")
	if err := p.Reboot(t.Context(), m.ID, provider.PowerOff); err == nil {
		t.Error("a machine whose agent would be placed outside of it was started")
	}
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("placed outside: %v, %v", left, err)
	}
}

func TestMachineOutlivesItsPlatform(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	in := input("node-1")
	cmd := role(t, "platform", state, in)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id [64]byte
	n, err := out.Read(id[:])
	if err != nil {
		t.Fatal(err)
	}
	kill(t, cmd)
	m, err := p.Get(t.Context(), strings.TrimSpace(string(id[:n])))
	if err != nil || m.Status != provider.StatusRunning {
		t.Fatalf("after its platform was killed the machine is %v, %v", m.Status, err)
	}
	if again, err := p.Create(t.Context(), in); err != nil || again.ID != m.ID {
		t.Errorf("a create that lost its answer made %v, %v; want %s", again.ID, err, m.ID)
	}
}

func TestKilledCreateIsWholeOrAbsent(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	if _, err := p.AgentAPIAddress(t.Context()); err != nil {
		t.Fatal(err)
	}
	const kills = 10
	began, whole := time.Now(), 0
	measure := create(t, p, "measure", nil)
	span := time.Since(began) * 3 / 2
	await(t, func() (string, bool) {
		s := sh(t, p, measure, "cat /run/agent.pid 2>/dev/null; true")
		return s, s != ""
	})
	for i := range kills {
		in := input("node-" + strconv.Itoa(i))
		cmd := role(t, "platform", state, in)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(rand.N(span)) // the random point; nothing is awaited
		kill(t, cmd)
		machines := settled(t, p, in.AccountID)
		for _, m := range machines {
			whole++
			if m.Status != provider.StatusRunning || sh(t, p, m, "hostname; ip -6 route show default | wc -l") != in.Name+"\n1" {
				t.Errorf("machine %s is %s", m.ID, m.Status)
			}
		}
		if len(machines) == 0 { // none but the two of the first is left, once what was killed has been collected
			await(t, func() (string, bool) { s := listing(t, state).processes; return s, strings.Count(s, "\n") == 2 })
		}
		m, err := p.Create(t.Context(), in)
		if err != nil {
			t.Fatalf("create again: %v", err)
		}
		if got := sh(t, p, m, "hostname"); got != in.Name {
			t.Errorf("created again: host name %q", got)
		}
		if err := p.Terminate(t.Context(), m.ID); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("of %d creates, killed within %v, %d had come through", kills, span.Round(time.Millisecond), whole)
}

// settled lists an account's machines once no change is under way: a child that a killed platform was about to start holds
// the machine's lock for the moment until it becomes another program, or ends.
func settled(t *testing.T, p *local.Provider, account string) (machines []provider.Machine) {
	t.Helper()
	await(t, func() (string, bool) {
		var err error
		if machines, err = p.List(t.Context(), account); err != nil {
			t.Fatalf("list after a kill: %v", err)
		}
		for _, m := range machines {
			if m.Status == provider.StatusPending {
				return string(m.Status), false
			}
		}
		return "", true
	})
	return machines
}

func TestKilledChangeIsFinished(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	m := create(t, p, "node-1", nil)
	for phase, want := range map[string]provider.Status{
		"starting": provider.StatusRunning, // it came up, only the record is late
		"stopping": provider.StatusStopped,
	} {
		setPhase(t, state, m.ID, phase)
		if got, err := p.Get(t.Context(), m.ID); err != nil || got.Status != want {
			t.Errorf("%s: status %v, %v; want %v", phase, got.Status, err, want)
		}
		if err := p.Start(t.Context(), m.ID); err != nil {
			t.Fatal(err)
		}
	}
	setPhase(t, state, m.ID, "removing")
	if got, err := p.Get(t.Context(), m.ID); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("removing: %v, %v; want ErrNotFound", got.Status, err)
	}
	if got := listing(t, state); got.processes != "" {
		t.Errorf("processes after a removal that was cut off:\n%s", got.processes)
	}
}

func TestManyCreatesAtOnce(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	const n = 6
	began := time.Now()
	results := make(chan error, n)
	account := uuid.NewString()
	for i := range n {
		go func() {
			in := input("node-" + strconv.Itoa(i))
			in.AccountID = account
			_, err := p.Create(t.Context(), in)
			results <- err
		}()
	}
	for range n {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d machines made in %v", n, time.Since(began).Round(time.Millisecond))
	seen := map[netip.Addr]bool{}
	machines, err := p.List(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		seen[m.PrivateAddress] = true
	}
	if len(seen) != n {
		t.Errorf("%d machines have %d addresses", len(machines), len(seen))
	}
}

func TestEnterPassesInputOutputAndExitCode(t *testing.T) {
	t.Parallel()
	p, state := newProvider(t)
	m := create(t, p, "node-1", nil)
	cmd := role(t, "enter", state, provider.CreateInput{})
	cmd.Env = append(cmd.Env, "MACHINE="+m.Name, "COMMAND=read line; echo out $line $(hostname); echo err >&2; env | cut -d= -f1 | sort | xargs; cut -d: -f3 /proc/self/cgroup | sort -u | xargs; exit 7", "HIDDEN=1")
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in\n"), &out, &errOut
	err := cmd.Run()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit code 7", err)
	}
	want := "out in node-1\nHOME LANG PATH PWD container\n/ /init\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if errOut.String() != "err\n" {
		t.Errorf("errors: %q", errOut.String())
	}
}

func TestCommandDiesWithItsCaller(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	m := create(t, p, "node-1", nil)
	cmd, err := p.Command(t.Context(), m.Name, "sleep", "4242")
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const count = "grep -l -x sleep /proc/[0-9]*/comm 2>/dev/null | wc -l"
	await(t, func() (string, bool) { s := sh(t, p, m, count); return s, s == "1" })
	kill(t, cmd)
	await(t, func() (string, bool) { s := sh(t, p, m, count); return s, s == "0" })
}

func TestWorkstationIsNoNode(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	w, err := p.Workstation(t.Context(), "desk")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := p.Workstation(t.Context(), "desk"); err != nil || again.PID != w.PID {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	cmd, err := p.Command(t.Context(), "desk", "sh", "-c", "hostname; ls /run/agent.pid 2>/dev/null; true")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "desk\n" {
		t.Errorf("in the workstation: %q, %v", out, err)
	}
	if machines, err := p.List(t.Context(), ""); err != nil || len(machines) > 0 {
		t.Errorf("listed as a machine: %v, %v", machines, err)
	}
	if _, err := p.Get(t.Context(), w.ID); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get: %v, want ErrNotFound", err)
	}
	create(t, p, "node-1", nil)
	if _, err := p.Workstation(t.Context(), "node-1"); err == nil {
		t.Error("a workstation took the name of a node's machine")
	}
	if err := p.Stop(t.Context(), w.ID, provider.PowerOff); err != nil {
		t.Fatal(err)
	}
	if again, err := p.Workstation(t.Context(), "desk"); err != nil || again.Status != provider.StatusRunning {
		t.Errorf("after a stop: %+v, %v", again, err)
	}
}

func TestWithoutRootTheMissingPrivilegeIsNamed(t *testing.T) {
	t.Parallel()
	state, err := os.MkdirTemp("/var/tmp", "local-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	if err := os.Chown(state, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(state, "program") // the test's own folder may be root's alone
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock() // no other test's child may hold it open
	err = os.WriteFile(program, text, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cmd := role(t, "unprivileged", state, provider.CreateInput{})
	cmd.Path = program
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const refused = "making machines needs root: this process lacks CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SYS_CHROOT, CAP_DAC_OVERRIDE; everything else works without (run powernode serve as root, or use another provider)"
	want := "create: " + refused + "\naddress: " + refused + "\nlist: [] <nil>\nterminate: <nil>\ndown: <nil>\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStateDirectoryThatMachinesWouldSeeIsRefused(t *testing.T) {
	t.Parallel()
	p := local.New(local.Options{StateDir: "/usr/local/powernode-local-test", Log: zerolog.Nop()})
	if _, err := p.Create(t.Context(), input("node-1")); err == nil || !strings.Contains(err.Error(), "below /usr") {
		t.Errorf("got %v", err)
	}
}

func TestCreateRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t)
	for name, change := range map[string]func(*provider.CreateInput){
		"public address": func(in *provider.CreateInput) { in.AllocatePublicIP = true },
		"spot":           func(in *provider.CreateInput) { in.Spot = true },
		"SSH keys":       func(in *provider.CreateInput) { in.SSHKeyIDs = []string{"k"} },
		"init script":    func(in *provider.CreateInput) { in.InitScript = "true" },
		"a name":         func(in *provider.CreateInput) { in.Name = "No Label" },
		"an instance":    func(in *provider.CreateInput) { in.InstanceID = "../x" },
	} {
		in := input("node-1")
		change(&in)
		if m, err := p.Create(t.Context(), in); err == nil {
			t.Errorf("%s: made %s", name, m.ID)
		}
	}
}

// Not parallel: it compares whole listings of this test's namespaces.
func TestDownLeavesNothing(t *testing.T) {
	state := t.TempDir()
	before := listing(t, state)
	p := local.New(local.Options{StateDir: state, AgentBinary: self(t), Log: zerolog.Nop()})
	a, b := create(t, p, "node-1", nil), create(t, p, "node-2", nil)
	if _, err := p.Workstation(t.Context(), "desk"); err != nil {
		t.Fatal(err)
	}
	sh(t, p, a, "ip tuntap add mode tun name t0; mount -t tmpfs none /mnt; mkdir /sys/fs/cgroup/unified/init/deeper /sys/fs/cgroup/unified/kubepods 2>/dev/null; setsid sleep 1000 >/dev/null 2>&1 & true")
	if err := p.Stop(t.Context(), b.ID, provider.PowerOff); err != nil {
		t.Fatal(err)
	}
	during := listing(t, state)
	if during.links == before.links || during.processes == before.processes || during.groups == before.groups || during.tables == before.tables || during.addresses == before.addresses || during.routes == before.routes {
		t.Fatalf("the listings do not see machines: %+v", during)
	}
	if during.mounts != before.mounts {
		t.Errorf("a machine's mount is on the host:\n%s", cmp.Diff(before.mounts, during.mounts))
	}
	if err := p.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, listing(t, state), cmp.AllowUnexported(world{})); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
	if err := p.Down(t.Context()); err != nil {
		t.Errorf("down again: %v", err)
	}
}

// world is what the host has, as text.
type world struct{ links, addresses, routes, mounts, tables, groups, processes string }

func listing(t *testing.T, state string) world {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	w := world{
		links: output(t, "ip", "-o", "link"), addresses: output(t, "ip", "-o", "addr"), mounts: string(mounts),
		routes: output(t, "ip", "route", "show", "table", "all") + output(t, "ip", "-6", "route", "show", "table", "all"),
		tables: output(t, "nft", "list", "tables"),
	}
	id := installationID(state)
	if id == "" {
		return w
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/*" + id + "*/*")
	if err != nil {
		t.Fatal(err)
	}
	w.groups = strings.Join(groups, "\n")
	dirs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if text, err := os.ReadFile(dir); err == nil && bytes.Contains(text, []byte(id)) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(dir), "cmdline"))
			w.processes += dir + " " + strings.ReplaceAll(string(name), "\x00", " ") + "\n"
		}
	}
	return w
}

func installationID(state string) string {
	var inst struct {
		ID string `json:"id"`
	}
	text, err := os.ReadFile(filepath.Join(state, "local/installation.json"))
	if err != nil || json.Unmarshal(text, &inst) != nil {
		return ""
	}
	return inst.ID
}

func setPhase(t *testing.T, state, id, phase string) {
	t.Helper()
	path := filepath.Join(state, "local/machines", id, "machine.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rec map[string]any
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	rec["phase"] = phase
	if text, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func newProvider(t *testing.T) (*local.Provider, string) {
	t.Helper()
	state := t.TempDir()
	p := local.New(local.Options{StateDir: state, AgentBinary: self(t), Log: zerolog.New(zerolog.NewTestWriter(t))})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Down(ctx); err != nil {
			t.Errorf("down: %v", err)
		}
	})
	return p, state
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func input(name string) provider.CreateInput {
	return provider.CreateInput{AccountID: uuid.NewString(), NodeID: uuid.NewString(), InstanceID: uuid.NewString(), Name: name}
}

func create(t *testing.T, p *local.Provider, name string, enrollment []byte) provider.Machine {
	t.Helper()
	in := input(name)
	in.Enrollment = enrollment
	m, err := p.Create(t.Context(), in)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return m
}

func entries(t *testing.T, p *local.Provider) []local.Entry {
	t.Helper()
	out, err := p.Entries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sh is what a script prints inside the machine.
func sh(t *testing.T, p *local.Provider, m provider.Machine, script string) string {
	t.Helper()
	cmd, err := p.Command(t.Context(), m.ID, "bash", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// ok says whether a script succeeds inside the machine.
func ok(t *testing.T, p *local.Provider, m provider.Machine, script string) bool {
	t.Helper()
	cmd, err := p.Command(t.Context(), m.ID, "bash", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Run() == nil
}

// How long an answer is waited for: silence takes the whole time, an answer as long as it takes on a busy host.
const (
	silent   = time.Second
	answered = 20 * time.Second
)

func tcp(to netip.Addr, port uint16, within time.Duration) string {
	return fmt.Sprintf("timeout %.0f bash -c 'exec 3<>/dev/tcp/%s/%d' 2>/dev/null", within.Seconds(), to, port)
}

func ping(to netip.Addr, within time.Duration) string {
	return fmt.Sprintf("ping -c1 -W%.0f %s >/dev/null 2>&1", within.Seconds(), to)
}

func gateway4(t *testing.T, p *local.Provider, m provider.Machine) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(sh(t, p, m, "ip route show default | cut -d' ' -f3"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// listen accepts on a free port of the address.
func listen(t *testing.T, host string) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

type outside struct {
	host, address netip.Addr
	port          uint16
}

// makeOutside is the rest of the world: a namespace behind a link, to which this one forwards, with a listener.
func makeOutside(t *testing.T) outside {
	t.Helper()
	o := outside{host: netip.MustParseAddr("203.0.113.1"), address: netip.MustParseAddr("203.0.113.2"), port: 8080}
	far := exec.Command("unshare", "--net", "--kill-child", "sh", "-c",
		"ip link set lo up; read go; ip addr add 203.0.113.2/24 dev far0; ip link set far0 up; ip route add default via 203.0.113.1; echo up; "+
			"exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalPort => 8080, Listen => 5, ReuseAddr => 1) or die; $| = 1; print \"listening\\n\"; while ($c = $s->accept) { close $c }'")
	in, err := far.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := far.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Process.Kill(); _ = far.Wait() })
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(far.Process.Pid)
	await(t, func() (string, bool) {
		ns, err := os.Readlink("/proc/" + pid + "/ns/net")
		return ns, err == nil && ns != own
	})
	for _, argv := range [][]string{
		{"ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", pid},
		{"ip", "addr", "add", "203.0.113.1/24", "dev", "near0"},
		{"ip", "link", "set", "near0", "up"},
		{"sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"},
	} {
		if err := run(argv...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	var said []byte
	for !bytes.Contains(said, []byte("listening")) {
		b := make([]byte, 64)
		n, err := out.Read(b)
		if err != nil {
			t.Fatalf("outside: %v after %q", err, said)
		}
		said = append(said, b[:n]...)
	}
	return o
}

func role(t *testing.T, name, state string, in provider.CreateInput) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(roleEnvironment(name), "TERM=", "STATE="+state, "INPUT="+string(text))
	return cmd
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

func output(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// await asks until the answer is yes.
func await(t *testing.T, ask func() (string, bool)) string {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got, yes := ask()
		if yes {
			return got
		}
		select {
		case <-deadline.C:
			t.Fatalf("not in time: %q", got)
		case <-tick.C:
		}
	}
}
