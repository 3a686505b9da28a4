package store

import (
	"context"
	"database/sql"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"
)

// beforeDepartures is a store of the release before it: a machine that is to leave, one that has left, and one that lives.
const beforeDepartures = `
INSERT INTO accounts VALUES ('acct', 'home', 'fd5e:8a21:c0de::/48', '2026-01-01T00:00:00.000Z', 1);
INSERT INTO providers (id, account_id, name, provider_type, description, enabled, config, created_at, revision)
  VALUES ('p', 'acct', 'racks', 'manual', '', 1, '{}', '2026-01-01T00:00:00.000Z', 1);
INSERT INTO instances (id, account_id, node_id, name, description, variety, status, architecture, config, network_profile,
  network_profile_source, provider_id, region_id, instance_type_id, provisioning, error_message, created_at, updated_at, terminated_at, revision)
  SELECT column1, 'acct', 'n-' || column1, 'name-' || column1, '', 'physical', column2, 'amd64', '{}', '', '', 'p', 'r', 't', '{}', '',
    '2026-01-01T00:00:00.000Z', '2026-01-02T00:00:00.000Z', column3, 1
  FROM (VALUES ('leaving', 'terminated', '2026-01-03T00:00:00.000Z'), ('left', 'terminated', '2026-01-03T00:00:00.000Z'), ('living', 'running', NULL));
INSERT INTO documents (instance_id, revision, hash, body, compiled_at)
  SELECT id, 7, 'h', CAST('{"of":"' || id || '"}' AS BLOB), '2026-01-03T00:00:00.000Z' FROM instances;
INSERT INTO certificates (id, account_id, instance_id, serial, subject, cert_pem, not_before, not_after, created_at, revision)
  SELECT 'c-' || id, 'acct', id, 's-' || id, id, 'PEM ' || id, '2026-01-01T00:00:00.000Z', '2026-04-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z', 1 FROM instances;
INSERT INTO departures VALUES ('leaving', 7, '2026-01-04T00:00:00.000Z', NULL), ('left', 7, '2026-01-04T00:00:00.000Z', '2026-01-03T00:00:01.000Z');
`

func TestDeparturesOfTheReleaseBeforeAreKept(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "powernode.db")
	fillBefore(t, path, 10, beforeDepartures)
	db, err := Open(ctx, Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Check(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	got := map[string]string{}
	err = db.View(ctx, func(v *View) error {
		for _, serial := range []string{"s-leaving", "s-left"} {
			d, pem, err := DepartureBySerial(ctx, v, serial)
			if err != nil {
				return err
			}
			cleaned := "not cleaned"
			if d.CleanedAt != nil {
				cleaned = "cleaned " + d.CleanedAt.String()
			}
			got[serial] = string(d.AccountID) + " " + string(d.NodeID) + " " + d.Name + " " + string(d.Document) + " since " + d.Since.String() + " " + cleaned + " " + pem
		}
		if _, _, err := DepartureBySerial(ctx, v, "s-living"); err == nil {
			t.Error("a living instance has a departure")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"s-leaving": `acct n-leaving name-leaving {"of":"leaving"} since 2026-01-03T00:00:00.000Z not cleaned PEM leaving`,
		"s-left":    `acct n-left name-left {"of":"left"} since 2026-01-03T00:00:00.000Z cleaned 2026-01-03T00:00:01.000Z PEM left`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("departures (-want +got):\n%s", diff)
	}
}

// fillBefore makes a store of the release that ended with a migration, with these rows.
func fillBefore(t *testing.T, path string, last int64, rows string) {
	t.Helper()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite3", path+"?_foreign_keys=on")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	p, err := goose.NewProvider(goose.DialectSQLite3, raw, files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.ExecContext(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
}
