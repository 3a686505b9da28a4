package crash_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"

	"powernode/spec/rig"
)

const creates = 500

func start(t *testing.T) (context.Context, *rig.Installation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	bin, err := filepath.Abs(rig.Given("BIN", "../../bin"))
	if err != nil {
		t.Fatal(err)
	}
	i := rig.New(bin, filepath.Join(t.TempDir(), "state"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane's log, its end:\n%s", i.Log())
		}
		if _, err := i.Run(context.Background(), "stop"); err != nil {
			t.Error(err)
		}
	})
	return ctx, i
}

// pipelined starts a bridge that gets all creates at once.
func pipelined(ctx context.Context, t *testing.T, i *rig.Installation) (*rig.Stdio, <-chan error) {
	t.Helper()
	s, err := i.Stdio(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var input strings.Builder
	for n := range creates {
		fmt.Fprintf(&input, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"system_sdwan_create_network","arguments":{"name":%q}}}`+"\n", n, name(n))
	}
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(s, input.String())
		written <- errors.Join(err, s.End())
	}()
	return s, written
}

func name(n int) string { return fmt.Sprintf("net-%03d", n) }

// acknowledged reads answers until the given end, or the given number; it answers ids by name.
func acknowledged(t *testing.T, s *rig.Stdio, most int, count *atomic.Int64) map[string]string {
	t.Helper()
	ids := map[string]string{}
	for len(ids) < most {
		a, err := s.Answer()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if a.Result == nil || a.Result.IsError {
			t.Fatalf("a create failed: %s", a.Line)
		}
		var result struct{ Network struct{ ID, Name string } }
		if err := json.Unmarshal(a.Result.StructuredContent, &result); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("net-%03s", a.ID); result.Network.Name != want {
			t.Errorf("call %s made %s, want %s", a.ID, result.Network.Name, want)
		}
		if _, twice := ids[result.Network.Name]; twice {
			t.Errorf("call %s was answered twice", a.ID)
		}
		ids[result.Network.Name] = result.Network.ID
		count.Add(1)
	}
	return ids
}

// Twenty kills while five hundred creates are on their way, some while a control plane starts: the client notices nothing.
func TestKilledControlPlaneLosesAndRepeatsNoCreate(t *testing.T) {
	t.Parallel()
	const kills = 20
	ctx, i := start(t)
	k := &killer{Installation: i, random: seeded(t)}
	s, written := pipelined(ctx, t, i)
	var answered atomic.Int64
	killed := make(chan error, 1)
	go func() { killed <- k.through(ctx, kills, &answered) }()
	ids := acknowledged(t, s, creates, &answered)
	if err := errors.Join(<-killed, <-written, s.Wait()); err != nil {
		t.Fatal(err)
	}
	if len(ids) != creates || k.kills.Load() != kills {
		t.Errorf("%d creates were acknowledged and %d control planes killed, want %d and %d", len(ids), k.kills.Load(), creates, kills)
	}
	sound(ctx, t, i, ids)
}

// through kills control planes between the first answer and the last: most after some more answers, each fourth as soon as it
// has started or while it does.
func (k *killer) through(ctx context.Context, kills int, answered *atomic.Int64) error {
	for n := range kills {
		if n%4 != 3 {
			due := int64(n*(creates-100)/kills + k.random.IntN((creates-100)/kills))
			err := rig.Await(ctx, fmt.Sprintf("%d answers", due), time.Minute, func(context.Context) (string, error) {
				if now := answered.Load(); now < due {
					return fmt.Sprintf("%d came", now), nil
				}
				return "", nil
			})
			if err != nil {
				return err
			}
		}
		if err := k.next(ctx, 40*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// The client is killed with the control plane: what it was told is there, and of the rest each is whole or absent.
func TestKilledClientAndControlPlaneLeaveNoHalfCreate(t *testing.T) {
	t.Parallel()
	ctx, i := start(t)
	random := seeded(t)
	s, written := pipelined(ctx, t, i)
	var answered atomic.Int64
	ids := acknowledged(t, s, 20+random.IntN(creates/2), &answered)
	pid := i.ServePID()
	if pid == 0 {
		t.Fatal("no control plane runs")
	}
	if err := errors.Join(syscall.Kill(pid, syscall.SIGKILL), s.Process.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // it was killed
	<-written    // and took no more
	sound(ctx, t, i, ids)
}

// sound asserts that each acknowledged network is there under its id, that every network that is there is whole, and that
// the record verifies.
func sound(ctx context.Context, t *testing.T, i *rig.Installation, ids map[string]string) {
	t.Helper()
	raw, err := i.Run(ctx, "call", "system_sdwan_list_networks", "--json", `{"limit":500}`)
	if err != nil {
		t.Fatal(err)
	}
	var out rig.Object
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	for _, n := range rig.List(out, "data", "networks") {
		if _, twice := there[rig.Text(n, "name")]; twice {
			t.Errorf("%s is there twice", rig.Text(n, "name"))
		}
		there[rig.Text(n, "name")] = rig.Text(n, "id")
	}
	for name, id := range ids {
		if there[name] != id {
			t.Errorf("%s was acknowledged as %s, and is %q", name, id, there[name])
		}
	}
	t.Logf("%d acknowledged, %d there", len(ids), len(there))
	if _, err := i.Run(ctx, "audit", "verify"); err != nil {
		t.Error(err)
	}
	whole(ctx, t, filepath.Join(i.Dir, "store.db"))
}

// whole looks into the store: a network, its record and the event of its call are there together or not at all.
func whole(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for what, query := range map[string]string{
		"networks without their one record": `SELECT count(*) FROM networks n WHERE 1 <> (SELECT count(*) FROM audit a
			WHERE a.resource_type = 'Sdwan::Network' AND a.action = 'created' AND a.resource_id = n.id)`,
		"records without their network": `SELECT count(*) FROM audit a WHERE a.resource_type = 'Sdwan::Network' AND NOT EXISTS
			(SELECT 1 FROM networks n WHERE n.id = a.resource_id)`,
		"more or fewer events than networks": `SELECT abs((SELECT count(*) FROM networks) - (SELECT count(*) FROM execution_events
			WHERE event_type = 'system_sdwan_create_network' AND status = 'ok'))`,
		"networks without their range": `SELECT count(*) FROM networks n WHERE 1 <> (SELECT count(*) FROM address_ranges r WHERE r.owner_id = n.id)`,
		"ranges without their network": `SELECT count(*) FROM address_ranges r WHERE r.kind = 'network' AND NOT EXISTS
			(SELECT 1 FROM networks n WHERE n.id = r.owner_id)`,
		"rows that point nowhere": `SELECT count(*) FROM pragma_foreign_key_check`,
		"faults in the file":      `SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'`,
	} {
		var n int
		if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}
