package vip

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/rs/zerolog"

	"powernode/agent/wireguard"
	"powernode/internal/netnstest"
	"powernode/sdwan"
)

func TestMain(m *testing.M) {
	os.Exit(netnstest.Main(m, map[string]netnstest.Command{"device-run": deviceRun, "agent": agentMain}))
}

// deviceRun is the agent's subcommand of that name, for a test binary.
func deviceRun(args []string) int {
	f := flag.NewFlagSet("device-run", flag.ExitOnError)
	name, mtu, log := f.String("name", "", ""), f.Int("mtu", 0, ""), f.String("log", "", "")
	detach, tell := f.Bool("detach", false, ""), f.Bool("tell-ready", false, "")
	_ = f.Parse(args)
	d := wireguard.Device{Name: *name, MTU: *mtu, Log: zerolog.New(os.Stderr)}
	if *tell {
		d.Ready = wireguard.ReadyPipe()
	}
	run := func() error { return wireguard.RunDevice(context.Background(), d) }
	if *detach {
		run = func() error {
			program, err := os.Executable()
			return errors.Join(err, wireguard.Detach(context.Background(),
				[]string{program, "device-run", "--name", *name, "--mtu", fmt.Sprint(*mtu), "--tell-ready"}, *log))
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type answer struct {
	Error string
	Keys  []sdwan.KeyReport
}

// agentMain hands each document of its input to both subsystems. Its one argument is the state directory.
func agentMain(args []string) int {
	log := zerolog.New(os.Stderr)
	w := wireguard.New(wireguard.Options{StateDir: args[0], Log: log})
	v := New(Options{StateDir: args[0], Log: log})
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var doc sdwan.Document
		if err := in.Decode(&doc); err != nil {
			return 0
		}
		var a answer
		var r sdwan.Report
		ctx := context.Background()
		if err := errors.Join(w.Reconcile(ctx, &doc), v.Reconcile(ctx, &doc), w.Observe(ctx, &r)); err != nil {
			a.Error = err.Error()
		}
		a.Keys = r.Keys
		if err := out.Encode(a); err != nil {
			return 1
		}
	}
}

// node is a machine with an agent that has both subsystems.
type node struct {
	*netnstest.Machine
	t   *testing.T
	in  *json.Encoder
	out *json.Decoder
}

func newNode(t *testing.T, s *netnstest.Switch, name string) *node {
	t.Helper()
	n := &node{Machine: s.Machine(name), t: t}
	cmd := n.Self(context.Background(), "agent", t.TempDir())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if !testing.Verbose() {
		cmd.Stderr = nil
	}
	n.in, n.out = json.NewEncoder(stdin), json.NewDecoder(stdout)
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(cmd) })
	return n
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func (n *node) apply(doc *sdwan.Document) answer {
	n.t.Helper()
	if err := n.in.Encode(doc); err != nil {
		n.t.Fatalf("%s: %v", n.Name, err)
	}
	var a answer
	if err := n.out.Decode(&a); err != nil {
		n.t.Fatalf("%s: %v", n.Name, err)
	}
	if a.Error != "" {
		n.t.Fatalf("%s: %s", n.Name, a.Error)
	}
	return a
}
