package governance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestATypeIsFoundByWhatPeopleCallIt(t *testing.T) {
	t.Parallel()
	for given, want := range map[string][]string{
		"instance":              {"System::NodeInstance"},
		"node":                  {"Devops::KubernetesNode", "System::Node"},
		"access_grants":         {"Sdwan::AccessGrant"},
		"Sdwan::Networks":       {"Sdwan::Network"},
		"kubernetes cluster":    {"Devops::KubernetesCluster"},
		"System::NodeInstanec":  {"System::NodeInstance"},
		"nothing like it at al": ResourceTypes(),
		"":                      ResourceTypes(),
		"s":                     ResourceTypes(),
	} {
		if diff := cmp.Diff(want, NearResourceTypes(given)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", given, diff)
		}
	}
}
