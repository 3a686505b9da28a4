package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/fleet"
	"powernode/store"
)

func TestDifferenceThatWasReportedCountsAlsoWhileModulesWait(t *testing.T) {
	t.Parallel()
	want := map[store.ModuleID]string{"fits": "a", "differs": "b", "absent": "c"}
	carried := map[string]string{"fits": "a", "differs": "x", "extra": "y"}
	pair := map[store.ModuleID]fleet.DigestPair{"differs": {Want: "b", Have: "x"}}
	for state, wanted := range map[string]fleet.ModuleDrift{
		"ok": {Missing: []store.ModuleID{"absent"}, Extra: []store.ModuleID{"extra"}, Mismatched: pair, NotMeasured: []store.ModuleID{}},
		"not_measured": {Missing: []store.ModuleID{}, Extra: []store.ModuleID{}, Mismatched: pair,
			NotMeasured: []store.ModuleID{"absent", "fits"}},
	} {
		got := fleet.CompareModules(want, []store.SubsystemState{{Name: "modules", State: state}}, carried)
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("modules say %s (-want +got):\n%s", state, diff)
		}
	}
}
