package fleet_test

import (
	"context"
	"strings"
	"testing"

	"powernode/platform/fleet"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

// The platform's own machine is not ended by the platform; a copy of that machine, which has its machine id too, is.
func TestPlatformsOwnMachineIsToldFromItsCopies(t *testing.T) {
	t.Parallel()
	type report struct{ machine, kernel string }
	for _, tt := range []struct {
		name     string
		enrolled string
		// reports come in order; one without a machine is a reboot of the platform's machine, to that kernel
		reports  []report
		platform string // its machine id
		own      bool
	}{
		{"a machine of its own", "other", []report{{"other", "k2"}}, "mine", false},
		{"the platform's, which has not reported", "mine", nil, "mine", true},
		{"the platform's", "mine", []report{{"mine", "k1"}}, "mine", true},
		{"the platform's, by an agent that says nothing of it", "mine", []report{{"", ""}}, "mine", true},
		{"the platform's, rebooted", "mine", []report{{"mine", "k1"}, {kernel: "k9"}}, "mine", true},
		{"the platform's, rebooted and heard", "mine", []report{{"mine", "k1"}, {kernel: "k9"}, {"mine", "k9"}}, "mine", true},
		{"the platform's, whose id was made anew under it", "mine", []report{{"anew", "k1"}}, "mine", true},
		{"the platform's, which had no id when it enrolled", "", []report{{"mine", "k1"}}, "mine", true},
		{"a copy", "mine", []report{{"mine", "k2"}}, "mine", false},
		{"a copy that has not reported", "mine", nil, "mine", true},
		{"a copy, before it is heard after a reboot of the platform's", "mine", []report{{"mine", "k2"}, {kernel: "k9"}}, "mine", true},
		{"a copy, heard after a reboot of the platform's", "mine", []report{{"mine", "k2"}, {kernel: "k9"}, {"mine", "k2"}}, "mine", false},
		{"a copy that was made of the running machine", "mine", []report{{"mine", "k1"}}, "mine", true},
		{"and has booted since", "mine", []report{{"mine", "k1"}, {"mine", "k2"}}, "mine", false},
		{"where the platform was before it moved", "mine", []report{{"mine", "k1"}}, "moved", false},
		{"a platform that can't say who it is", "mine", []report{{"mine", "k1"}}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.MachineID, w.KernelBootID = tt.platform, "k1"
			i := w.instance(t, w.node(t, "a"))
			_, csr := request(t)
			token := w.token(t, i)
			w.update(t, func(ctx context.Context, tx *store.Tx) error {
				i.Intent = "" // its machine was made
				_, err := store.UpdateInstance(ctx, tx, i)
				return err
			})
			w.update(t, func(ctx context.Context, tx *store.Tx) error {
				_, err := w.Enroll(ctx, tx, fleet.EnrollInput{Token: token, CSRPEM: csr, Architecture: "amd64", MachineID: tt.enrolled})
				return err
			})
			for _, r := range tt.reports {
				if r.machine == "" && r.kernel != "" {
					w.KernelBootID = r.kernel
					continue
				}
				w.update(t, func(ctx context.Context, tx *store.Tx) error {
					now, err := store.InstanceByID(ctx, &tx.View, w.acct, i.ID)
					if err != nil {
						return err
					}
					return w.Ingest(ctx, tx, now, sdwan.Report{BootID: "b", MachineID: r.machine, KernelBootID: r.kernel})
				})
			}
			var refused error
			w.view(t, func(ctx context.Context, v *store.View) error {
				refused = w.CheckTerminate(ctx, v, w.acct, i.ID)
				return nil
			})
			if own := schema.CodeOf(refused) == schema.PreconditionFailed && strings.Contains(refused.Error(), "self_management_violation"); own != tt.own {
				t.Errorf("it is the platform's own: %v (%v), want %v", own, refused, tt.own)
			}
			if refused != nil && !tt.own {
				t.Errorf("refused: %v", refused)
			}
		})
	}
}
