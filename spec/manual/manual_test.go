package manual

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

var shared *rig.Installation

func TestMain(m *testing.M) {
	os.Exit(rig.RunTests(m, func(_ context.Context, i *rig.Installation) error {
		shared = i
		return nil
	}))
}

// site is what the test acts on: a platform that machines elsewhere reach, a lab machine, and the machine of somebody else.
type site struct {
	*rig.Installation
	token   string // of the person, an administrator
	member  *rig.Machine
	machine *machine
	address string // of the machine on the bridge, where the lab's machines reach it
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Installation: shared}
	ctx := t.Context()
	template, err := s.Template(ctx, "plain")
	ok(t, err)
	s.member, err = rig.NewMachine(ctx, s.Installation, template, "lab-1")
	ok(t, err)

	id := make([]byte, 5)
	rand.Read(id)
	direct := netip.AddrFrom16([16]byte{0xfd, id[0], id[1], id[2], id[3], id[4]})
	hosts, machines := direct.Next(), direct.Next().Next()
	underlay, err := s.underlay()
	ok(t, err)
	bridge, err := s.Bridge()
	ok(t, err)
	s.address = underlay.Addr().String()
	s.machine, err = newMachine("pnm"+hex.EncodeToString(id[:4]), link{inside: "eth0", address: netip.PrefixFrom(machines, 64), host: netip.PrefixFrom(hosts, 64)},
		link{inside: "eth1", address: underlay, bridge: bridge})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if s.machine == nil {
			return
		}
		if t.Failed() && s.machine.boot != nil {
			out, _ := s.machine.run(ctx, "", "sh", "-c", "journalctl -u powernode-agent -n 40 -o cat --no-pager; systemctl status powernode-agent; ip -br addr; wg show")
			t.Logf("the machine at the end:\n%s", out)
		}
		ok(t, s.machine.remove(ctx))
	})
	ok(t, err)
	ok(t, s.machine.start(ctx))
	s.serveAt(t, hosts)
	s.token, err = s.administrator(ctx)
	ok(t, err)
	return s
}

// underlay is an address on the lab's bridge that no lab machine gets.
func (s *site) underlay() (netip.Prefix, error) {
	raw, err := os.ReadFile(filepath.Join(s.Dir, "local", "installation.json"))
	if err != nil {
		return netip.Prefix{}, err
	}
	var inst struct{ Prefix6 netip.Prefix }
	if err := json.Unmarshal(raw, &inst); err != nil {
		return netip.Prefix{}, err
	}
	b := inst.Prefix6.Addr().As16()
	b[13], b[15] = 0xff, 1
	return netip.PrefixFrom(netip.AddrFrom16(b), inst.Prefix6.Bits()), nil
}

// serveAt starts the control plane once with an address for machines elsewhere; later starts know it.
func (s *site) serveAt(t *testing.T, address netip.Addr) {
	t.Helper()
	ctx := t.Context()
	_, err := s.Run(ctx, "stop")
	ok(t, err)
	cmd := s.Command(ctx, "serve", "--agents", address.String())
	ok(t, cmd.Start())
	ok(t, rig.Await(ctx, "the named address to be recorded", 20*time.Second, func(context.Context) (string, error) {
		if _, err := os.Stat(filepath.Join(s.Dir, "agents.json")); err != nil {
			return err.Error(), nil
		}
		return "", nil
	}))
	_, err = s.Run(ctx, "stop")
	ok(t, errors.Join(err, cmd.Wait()))
}

// administrator makes a token of the person's: providers are an administrator's.
func (s *site) administrator(ctx context.Context) (string, error) {
	path := filepath.Join(s.Dir, "admin.token")
	_, err := rig.Converse(ctx, s.Command(ctx, "token", "create", "--user", rig.Email, "--role", "admin", "--out", path), []rig.Exchange{{Asked: "[y/n]", Typed: "yes"}, {Asked: "passphrase:", Typed: s.Passphrase}})
	if err != nil {
		return "", err
	}
	token, err := os.ReadFile(path)
	return strings.TrimSpace(string(token)), err
}

// admin calls a verb as the person.
func (s *site) admin(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	raw, err := json.Marshal(arguments)
	ok(t, err)
	cmd := s.Command(t.Context(), "call", verb, "--json", string(raw))
	cmd.Env = append(os.Environ(), "POWERNODE_TOKEN="+s.token)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", verb, err, out)
	}
	var answer struct{ Data rig.Object }
	ok(t, json.Unmarshal(out, &answer))
	return answer.Data
}

func (s *site) must(t *testing.T, verb string, arguments rig.Object) rig.Object {
	t.Helper()
	out, err := s.Call(t.Context(), verb, arguments)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return out
}

// inside runs a shell line in the machine of somebody else.
func (s *site) inside(t *testing.T, line string) string {
	t.Helper()
	out, err := s.machine.run(t.Context(), line+"\n", "bash", "-s")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reaches waits until a lab machine's ping is answered.
func (s *site) reaches(t *testing.T, address string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), s.member.Name+" to reach "+address, 30*time.Second, func(ctx context.Context) (string, error) {
		if _, err := s.Exec(ctx, s.member.Name, "ping", "-n", "-c", "1", "-W", "1", address); err != nil {
			if !rig.Exited(err) {
				return "", err
			}
			return "ping is not answered", nil
		}
		return "", nil
	}))
}

// becomes waits for an instance's status, converged or ended.
func (s *site) becomes(t *testing.T, id, status string) rig.Object {
	t.Helper()
	var got rig.Object
	ok(t, rig.Await(t.Context(), "instance "+id+" to be "+status, time.Minute, func(ctx context.Context) (string, error) {
		out, err := s.Call(ctx, "system_get_instance", rig.Object{"instance_id": id})
		if err != nil {
			return "", err
		}
		got = out
		if rig.Text(out, "instance", "status") != status || rig.At(out, "instance", "converged") != (status == "running") {
			return fmt.Sprintf("status %s, subsystems %v", rig.Text(out, "instance", "status"), rig.At(out, "instance", "subsystems")), nil
		}
		return "", nil
	}))
	return got
}

// ours is what an agent leaves traces of on a machine, one a line; a clean machine has none.
const ours = `ls -d /var/lib/powernode-agent /run/powernode-agent /usr/local/bin/powernode-agent /etc/systemd/system/powernode-agent.service \
  /etc/systemd/system/*.wants/powernode-agent.service /etc/racked /etc/systemd/system/pn-module-* 2>/dev/null
ls /sys/class/net | grep wg-sdwan
nft list tables | grep powernode
pgrep -fl powernode-agent
systemctl --no-legend list-units --all 'powernode*'
ip -6 route | grep wg-sdwan
true`

// secret is the token in a command.
var secret = regexp.MustCompile(`pne_[A-Za-z0-9_-]+`)

func TestMachineOfSomebodyElseJoinsComesBackAndLeavesClean(t *testing.T) {
	s := newSite(t)
	created := s.admin(t, "system_create_provider", rig.Object{"name": "racks", "provider_type": "manual"})
	provider := rig.Text(created, "provider", "id")
	capable := s.must(t, "system_get_provider", rig.Object{"id": provider})
	if got := fmt.Sprint(capable["capabilities"]); got != "[enrolment]" {
		t.Errorf("capabilities of manual are %s", got)
	}
	template, err := s.Template(t.Context(), "theirs")
	ok(t, err)
	node := rig.Text(s.must(t, "system_create_node", rig.Object{"name": "rack-1", "template_id": template}), "node", "id")
	where := rig.Object{"node_id": node,
		"provider_region_id":        rig.Text(s.must(t, "system_list_regions", rig.Object{"provider_id": provider}), "regions", 0, "id"),
		"provider_instance_type_id": rig.Text(s.must(t, "system_list_instance_types", rig.Object{"provider_id": provider}), "instance_types", 0, "id")}
	provisioned := s.must(t, "system_provision_instance", where)
	instance, command := rig.Text(provisioned, "instance", "id"), rig.Text(provisioned, "enrollment", "command")
	t.Logf("the machine's owner runs: %s", secret.ReplaceAllString(command, "pne_…"))
	if out := s.inside(t, command); !strings.Contains(out, "this machine is instance "+instance) {
		t.Errorf("the command printed %q", out)
	}
	s.becomes(t, instance, "running")
	if _, err := s.machine.run(t.Context(), command+"\n", "bash", "-s"); err != nil {
		t.Errorf("the same command again on the same machine: %v", err)
	}

	peer := s.must(t, "system_sdwan_attach_peer", rig.Object{"network_id": s.member.Network, "node_instance_id": instance,
		"endpoint_host_v6": s.address, "endpoint_port": 51820, "publicly_reachable": true})
	overlay, device := rig.Text(peer, "peer", "assigned_address"), rig.Text(peer, "peer", "device_name")
	first := s.becomes(t, instance, "running")
	s.reaches(t, overlay)
	if out := s.inside(t, "ip -br link show dev "+device+"; nft list tables"); !strings.Contains(out, device) || !strings.Contains(out, "inet powernode") {
		t.Errorf("the machine has %s", out)
	}

	s.carries(t, node, instance)
	s.refusesPackage(t, node, instance)

	_, err = s.Run(t.Context(), "stop")
	ok(t, err)
	ok(t, s.machine.reboot(t.Context()))
	s.reaches(t, overlay) // without the platform
	ok(t, rig.Await(t.Context(), "another boot id", time.Minute, func(ctx context.Context) (string, error) {
		out, err := s.Call(ctx, "system_get_instance", rig.Object{"instance_id": instance})
		if err != nil || rig.Text(out, "instance", "boot_id") != rig.Text(first, "instance", "boot_id") {
			return "", err
		}
		return "the machine has not reported since", nil
	}))
	s.becomes(t, instance, "running")
	s.awaitInside(t, "the module's service after the reboot", "active", "systemctl is-active pn-module-racked")

	var refusal *rig.Refusal
	_, err = s.Call(t.Context(), "system_stop_instance", rig.Object{"instance_id": instance})
	if !errors.As(err, &refusal) || refusal.Code != "precondition_failed" {
		t.Errorf("stop of a machine that nobody can stop from here: %v", err)
	}
	_, err = s.Approved(t.Context(), "system_terminate_instance", rig.Object{"instance_id": instance})
	ok(t, err)
	ok(t, rig.Await(t.Context(), "the machine to be clean", time.Minute, func(context.Context) (string, error) { return s.inside(t, ours), nil }))
	if state := s.inside(t, "systemctl is-system-running || true; systemctl --failed --no-legend | grep powernode || true"); strings.Contains(state, "powernode") {
		t.Errorf("systemd says %s", state)
	}
	s.becomes(t, instance, "terminated")
	s.leavesLate(t, where)
	s.finishesLeaving(t)
	s.leavesBeforeItIsReplaced(t, template, where)
}

// leavesLate brings the machine in again, and has its instance end, and its node go, while it is switched off.
func (s *site) leavesLate(t *testing.T, where rig.Object) {
	t.Helper()
	provisioned := s.must(t, "system_provision_instance", where)
	instance := rig.Text(provisioned, "instance", "id")
	s.inside(t, "rmdir /run/racked-once") // the module's own doing, which it does once
	s.inside(t, rig.Text(provisioned, "enrollment", "command"))
	s.must(t, "system_sdwan_attach_peer", rig.Object{"network_id": s.member.Network, "node_instance_id": instance,
		"endpoint_host_v6": s.address, "endpoint_port": 51820, "publicly_reachable": true})
	s.becomes(t, instance, "running")
	s.awaitInside(t, "the module's service", "active", "systemctl is-active pn-module-racked")
	s.inside(t, "mkdir /root/kept; cp /usr/local/bin/powernode-agent /etc/systemd/system/powernode-agent.service /root/kept/")

	ok(t, s.machine.stop(t.Context()))
	ended, err := s.Approved(t.Context(), "system_terminate_instance", rig.Object{"instance_id": instance})
	ok(t, err)
	if rig.Find(rig.List(ended, "warnings"), "code", "machine_not_cleaned") == nil {
		t.Errorf("the end of a machine that is off says %v", ended)
	}
	left := s.must(t, "system_get_instance", rig.Object{"instance_id": instance})
	if state := rig.Find(rig.List(left, "instance", "subsystems"), "name", "cleanup")["state"]; state != "not_measured" {
		t.Errorf("its clean-up is %v", state)
	}
	_, err = s.Approved(t.Context(), "system_delete_node", rig.Object{"node_id": where["node_id"]})
	ok(t, err)
	ok(t, s.machine.start(t.Context()))
	ok(t, rig.Await(t.Context(), "the machine that comes back to be clean", time.Minute, func(context.Context) (string, error) { return s.inside(t, ours), nil }))
	signals := rig.List(s.must(t, "system_recent_signals", rig.Object{"kind": "system.instance_cleaned"}), "events")
	if rig.Find(signals, "node_instance_id", instance) == nil {
		t.Errorf("no signal says that the machine is clean: %v", signals)
	}
}

// finishesLeaving has an agent that was cut off while it removed itself start again.
func (s *site) finishesLeaving(t *testing.T) {
	t.Helper()
	for range 5 { // systemd may do what it is told in another order each time
		s.inside(t, `cd /root/kept && mkdir -m 700 /var/lib/powernode-agent && touch /var/lib/powernode-agent/left && cp powernode-agent /usr/local/bin/ &&
cp powernode-agent.service /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now powernode-agent`)
		ok(t, rig.Await(t.Context(), "the rest of the agent to be gone", time.Minute, func(context.Context) (string, error) { return s.inside(t, ours), nil }))
	}
}

// leavesBeforeItIsReplaced has the instance end while its agent does not run, and the machine become another one's.
func (s *site) leavesBeforeItIsReplaced(t *testing.T, template string, where rig.Object) {
	t.Helper()
	provision := func(name string) (instance, command string) {
		where["node_id"] = rig.Text(s.must(t, "system_create_node", rig.Object{"name": name, "template_id": template}), "node", "id")
		provisioned := s.must(t, "system_provision_instance", where)
		return rig.Text(provisioned, "instance", "id"), rig.Text(provisioned, "enrollment", "command")
	}
	former, command := provision("rack-2")
	s.inside(t, command)
	peer := s.must(t, "system_sdwan_attach_peer", rig.Object{"network_id": s.member.Network, "node_instance_id": former,
		"endpoint_host_v6": s.address, "endpoint_port": 51820, "publicly_reachable": true})
	s.becomes(t, former, "running")
	device := rig.Text(peer, "peer", "device_name")
	s.inside(t, "systemctl disable --now powernode-agent; ip -br link show dev "+device)
	_, err := s.Approved(t.Context(), "system_terminate_instance", rig.Object{"instance_id": former})
	ok(t, err)

	next, command := provision("rack-3")
	out := s.inside(t, strings.Replace(command, " install ", " install --replace ", 1))
	if !strings.Contains(out, "this machine is instance "+next) {
		t.Errorf("the command printed %q", out)
	}
	s.becomes(t, next, "running")
	ended := s.must(t, "system_get_instance", rig.Object{"instance_id": former})
	if state := rig.Find(rig.List(ended, "instance", "subsystems"), "name", "cleanup")["state"]; state != "ok" {
		t.Errorf("the clean-up of the machine's former instance is %v", state)
	}
	if links := s.inside(t, "ls /sys/class/net"); strings.Contains(links, "wg-sdwan") {
		t.Errorf("the machine has %s, of its former instance", links)
	}
	_, err = s.Approved(t.Context(), "system_terminate_instance", rig.Object{"instance_id": next})
	ok(t, err)
	ok(t, rig.Await(t.Context(), "the machine to be clean again", time.Minute, func(context.Context) (string, error) { return s.inside(t, ours), nil }))
}
