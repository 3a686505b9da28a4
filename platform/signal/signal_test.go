package signal_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/signal"
	"powernode/store"
	"powernode/store/storetest"
)

func emitted(t *testing.T, fn func(ctx context.Context, tx *store.Tx, acct store.AccountID) error) []string {
	t.Helper()
	db := storetest.New(t)
	var out []string
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		a := store.Account{ID: store.AccountID(tx.NewID()), Name: "a", Prefix: store.Prefix{Prefix: netip.MustParsePrefix("fd00::/48")}}
		if err := store.InsertAccount(t.Context(), tx, a); err != nil {
			return err
		}
		if err := fn(t.Context(), tx, a.ID); err != nil {
			return err
		}
		signals, err := store.SignalsAfter(t.Context(), &tx.View, a.ID, 0, nil, nil, 100)
		for _, s := range signals {
			out = append(out, s.Kind+" "+s.Severity+" "+s.Fingerprint)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPairOpensOnceAndClosesOnce(t *testing.T) {
	t.Parallel()
	got := emitted(t, func(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
		silent := signal.Event{Kind: "system.instance_silent"}
		critical := signal.Event{Kind: "system.instance_silent", Severity: signal.Critical}
		shut := func() error {
			return signal.Close(ctx, tx, acct, "i", "system.instance_silent", signal.Subject{}, nil)
		}
		for _, step := range []func() error{
			shut, // nothing is open
			func() error { return signal.Open(ctx, tx, acct, "i", silent) },
			func() error { return signal.Open(ctx, tx, acct, "i", silent) },
			func() error { return signal.Open(ctx, tx, acct, "other", silent) },
			func() error { return signal.Open(ctx, tx, acct, "i", critical) },
			func() error { return signal.Open(ctx, tx, acct, "i", silent) },
			shut, shut,
			func() error { return signal.Open(ctx, tx, acct, "i", silent) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
	want := []string{"system.instance_silent medium instance_liveness:i", "system.instance_silent medium instance_liveness:other",
		"system.instance_silent critical instance_liveness:i", "system.instance_recovered low instance_liveness:i",
		"system.instance_silent medium instance_liveness:i"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
}

func TestKindsOutsideTheCatalogueAreNotEmitted(t *testing.T) {
	t.Parallel()
	emitted(t, func(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
		for name, err := range map[string]error{
			"made up":              signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.made_up"}),
			"a pair's as a single": signal.Emit(ctx, tx, acct, signal.Event{Kind: "system.instance_silent"}),
			"a single as a pair's": signal.Open(ctx, tx, acct, "i", signal.Event{Kind: "system.instance_running"}),
			"closing by a closing": signal.Close(ctx, tx, acct, "i", "system.instance_recovered", signal.Subject{}, nil),
		} {
			if err == nil {
				t.Errorf("%s is emitted", name)
			}
		}
		return nil
	})
}

func TestCatalogueIsWhole(t *testing.T) {
	t.Parallel()
	for name, k := range signal.Catalogue {
		if k.Severity == "" || (!strings.HasPrefix(name, "system.") && !strings.HasPrefix(name, "fleet.") && !strings.HasPrefix(name, "federation.")) {
			t.Errorf("%s: %+v", name, k)
		}
		if k.Closes != "" && (signal.Catalogue[k.Closes].Family != k.Family || signal.Catalogue[k.Closes].Severity != signal.Low) {
			t.Errorf("%s is closed by %s, which is of another family, or not low", name, k.Closes)
		}
	}
}

func TestPrefixEndsAtABorder(t *testing.T) {
	t.Parallel()
	for prefix, some := range map[string]bool{"system.k3s": true, "system.k3s_": true, "system.": true, "system": true, "system.k3": false,
		"": false, "system.operation_pending": true, "operation": false} {
		kinds := signal.WithPrefix(prefix)
		if (len(kinds) > 0) != some {
			t.Errorf("%q: %v, want some %t", prefix, kinds, some)
		}
	}
	if got := signal.AtLeast("high"); cmp.Diff([]string{"high", "critical"}, got) != "" || signal.AtLeast("") != nil {
		t.Errorf("at least high: %v", got)
	}
}
