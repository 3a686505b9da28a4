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
		if strings.Contains(string(got), "network-online.target") != waits || strings.Contains(string(got), "After=network-online.target powernode-agent.service") != waits {
			t.Errorf("unit of %s:\n%s", name, got)
		}
	}
}
