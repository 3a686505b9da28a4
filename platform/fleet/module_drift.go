package fleet

import (
	"context"
	"slices"

	"powernode/store"
)

// ModuleDrift is how what an agent carries differs from what it is to carry. What nobody measured is in NotMeasured.
type ModuleDrift struct {
	Missing     []store.ModuleID
	Extra       []store.ModuleID
	Mismatched  map[store.ModuleID]DigestPair
	NotMeasured []store.ModuleID
}

// DigestPair is a module's digest as it is to be and as it was reported.
type DigestPair struct {
	Want string `json:"want"`
	Have string `json:"have"`
}

// Any says whether a difference was measured.
func (d ModuleDrift) Any() bool { return len(d.Missing)+len(d.Extra)+len(d.Mismatched) > 0 }

// ModuleDriftOf compares an instance's document with its last report; nil is none.
func ModuleDriftOf(ctx context.Context, v *store.View, i store.Instance, report *store.InstanceReport) (ModuleDrift, error) {
	want, err := ModuleDigests(ctx, v, i)
	if err != nil || report == nil {
		return CompareModules(want, nil, nil), err
	}
	return CompareModules(want, report.Subsystems.V, report.Modules.V), nil
}

// CompareModules compares the digests that an agent is to carry with those that it reports. Where its modules subsystem
// says nothing, or that it waits, a digest that differs is a difference still; what fits, or is not there, was not measured.
func CompareModules(want map[store.ModuleID]string, said []store.SubsystemState, carried map[string]string) ModuleDrift {
	d := ModuleDrift{Missing: []store.ModuleID{}, Extra: []store.ModuleID{}, Mismatched: map[store.ModuleID]DigestPair{}, NotMeasured: []store.ModuleID{}}
	measured := slices.ContainsFunc(said, func(sub store.SubsystemState) bool { return sub.Name == "modules" && sub.State != "not_measured" })
	for id, digest := range want {
		have, there := carried[string(id)]
		switch {
		case there && have != digest:
			d.Mismatched[id] = DigestPair{Want: digest, Have: have}
		case !measured:
			d.NotMeasured = append(d.NotMeasured, id)
		case !there:
			d.Missing = append(d.Missing, id)
		}
	}
	for id := range carried {
		if _, wanted := want[store.ModuleID(id)]; measured && !wanted {
			d.Extra = append(d.Extra, store.ModuleID(id))
		}
	}
	slices.Sort(d.Missing)
	slices.Sort(d.Extra)
	slices.Sort(d.NotMeasured)
	return d
}

// Silent lists the instances of an account that should run, those that are rebooting among them, and were not heard of since
// a time, by name.
func Silent(ctx context.Context, v *store.View, acct store.AccountID, cutoff store.Time) ([]store.Instance, error) {
	all, err := store.Instances(ctx, v, acct, "", "", "")
	if err != nil {
		return nil, err
	}
	reports, err := store.InstanceReports(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(i store.Instance) bool {
		r, reported := reports[i.ID]
		runs := i.Status == store.InstanceRunning || i.Status == store.InstanceRebooting
		return !runs || (reported && !r.ReceivedAt.Before(cutoff.Time))
	}), nil
}
