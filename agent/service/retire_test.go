package service

import (
	"strings"
	"testing"
)

func TestAgentsOwnUnitWaitsForNothing(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{AgentName: false, "k3s": true} {
		got, err := encodeUnit(Unit{Name: name, Exec: []string{"/usr/local/bin/x"}}, "/agent")
		if err != nil {
			t.Fatal(err)
		}
		core := map[bool]string{true: "LimitCORE=infinity\n", false: "LimitCORE=0\n"}[waits] // the agent's memory holds keys; unsaid is infinity
		if !strings.Contains(string(got), core) {
			t.Errorf("unit of %s has not %s", name, core)
		}
		if strings.Contains(string(got), "network-online.target") != waits || strings.Contains(string(got), "After=network-online.target powernode-agent.service") != waits {
			t.Errorf("unit of %s:\n%s", name, got)
		}
	}
}
