package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"powernode/spec/rig"
)

// play builds the demo and runs it as `make demo` does. BIN and K3S say what it takes; their defaults are the tree's.
func play(t *testing.T, environment ...string) (printed string, failed bool) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the demo: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.TestsLimit())
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-bin", orDefault("BIN", "../../bin"), "-spec", "..", "-cache", "../../.cache")
	cmd.Env = append(os.Environ(), append([]string{"K3S=" + orDefault("K3S", "standin")}, environment...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("the demo did not end:\n%s", out.String())
	}
	return out.String(), err != nil
}

func orDefault(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func TestDemoHoldsItsEvidence(t *testing.T) {
	printed, failed := play(t)
	if failed || !strings.Contains(printed, "The whole job took") {
		t.Fatalf("the demo failed:\n%s", printed)
	}
	if strings.Contains(printed, "✗") {
		t.Errorf("the demo went on after evidence that does not hold:\n%s", printed)
	}
}

// The demo proves something only if it fails when isolation is broken.
func TestDemoNoticesABrokenFirewall(t *testing.T) {
	printed, failed := play(t, "BREAK=firewall")
	if !failed || !strings.Contains(printed, "DEMO FAILED: Step 5: the tenants don't reach each other: an attacker on A's server") {
		t.Fatalf("the demo did not notice that the firewall is gone:\n%s", printed)
	}
}
