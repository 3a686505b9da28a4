// Command demo plays the tutorial from start to end: two isolated K3s clusters in one account, made, joined, used,
// attacked and removed by a foreign MCP client over stdio, with a person at a terminal who approves what is dangerous.
//
// It prints each call, its short result and the evidence. Each piece of evidence is an assertion: the first that does
// not hold ends the demo with its name and a non-zero exit code.
//
// Environment: K3S=PATH gives a K3s binary, K3S=standin asks for the stand-in; BREAK=firewall removes what isolates, to
// show that the demo would notice; KEEP=1 leaves the machines standing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"powernode/spec/rig"
)

func main() {
	bin := flag.String("bin", "bin", "folder with powernode and powernode-agent")
	spec := flag.String("spec", "spec", "folder with the stand-in's module")
	cache := flag.String("cache", ".cache", "folder for downloads and builds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *spec, *cache); err != nil {
		fmt.Fprintf(os.Stderr, "\nDEMO FAILED: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin, spec, cache string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("making machines on this host needs root: run it as root")
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "powernode-demo-")
	if err != nil {
		return err
	}
	started := time.Now()
	k3s, err := rig.ChooseK3s(ctx, os.Getenv("K3S"), cache, spec, os.Stdout)
	if err != nil {
		return err
	}
	t := &tutorial{Installation: rig.New(bin, dir), k3s: k3s, breakage: os.Getenv("BREAK"), started: time.Now()}
	defer func() { err = errors.Join(err, t.end(err, dir)) }()
	t.say("K3s: %s, %s", k3s.What, k3s.Version)
	if spent := time.Since(started); spent > time.Second {
		t.say("(getting it took %s)", spent.Round(time.Second))
	}
	for _, step := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"The person: powernode init, on a terminal", t.person},
		{"The platform, seen by an assistant", t.look},
		{"K3s goes into the platform's artefact store; a person releases it", t.provide},
		{"Tutorial 04: cluster A on network tenant-a", t.clusterA},
		{"Step 1: the second SDWAN network", t.step1},
		{"Step 2: tenant B's machines, attached to its network", t.step2},
		{"Step 3: k3s-server for tenant B, on a machine that is provisioned already", t.step3},
		{"Step 4: tenant B's worker joins the cluster that is named", t.step4},
		{"A join that could mean two clusters is refused", t.ambiguous},
		{"Step 5: the operator's workstation reaches both clusters", t.workstation},
		{"Step 5: the tenants don't reach each other", t.isolation},
		{"Step 6: firewall rules within tenant B", t.step6},
		{"Verification", t.verify},
		{"What it looks like", t.picture},
		{"Clean-up: what is dangerous waits for a person", t.cleanUp},
	} {
		t.title(step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	t.say("\nThe whole job took %s.", time.Since(t.started).Round(time.Second))
	return nil
}

// end leaves nothing on the host, unless asked to.
func (t *tutorial) end(failed error, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getenv("KEEP") != "" {
		t.say("KEEP is set: the installation stays at %s", dir)
		return nil
	}
	err := t.Close(ctx)
	if failed != nil {
		if log, readErr := os.ReadFile(filepath.Join(dir, "serve.log")); readErr == nil {
			fmt.Fprintf(os.Stderr, "--- the control plane's log, its end ---\n%s\n", tail(log, 4000))
		}
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		return b[len(b)-n:]
	}
	return b
}
