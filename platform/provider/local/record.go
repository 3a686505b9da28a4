package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"powernode/platform/provider"
)

// Kinds of machine.
const (
	kindNode        = "node"
	kindWorkstation = "workstation"
)

// Tags, the same for every provider.
const (
	tagAccount  = "powernode:account_id"
	tagNode     = "powernode:node_id"
	tagInstance = "powernode:instance_id"
)

// phase is how far the last change of a machine came. Only running and stopped are ends; whoever finds another one,
// and the machine's lock free, finds a change whose maker was killed.
type phase string

const (
	phaseCreating phase = "creating" // first start, the machine never ran
	phaseStarting phase = "starting"
	phaseRunning  phase = "running"
	phaseStopping phase = "stopping"
	phaseStopped  phase = "stopped"
	phaseRemoving phase = "removing"
)

// record is what is remembered of a machine: StateDir/local/machines/ID/machine.json.
type record struct {
	ID        string            `json:"id"`
	Kind      string            `json:"kind"`
	Name      string            `json:"name"`
	Tags      map[string]string `json:"tags"`
	Index     int               `json:"index"`     // on the underlay
	Addresses []netip.Addr      `json:"addresses"` // underlay, IPv6 first
	Phase     phase             `json:"phase"`
	Init      process           `json:"init"` // zero: none
	CreatedAt time.Time         `json:"created_at"`
}

const (
	recordFile     = "machine.json"
	lockFile       = "lock"
	enrollmentFile = "enrollment.json" // of a machine that was stopped before it had used it; 0600
	removeTimeout  = 30 * time.Second
)

func (p *Provider) machinesDir() string         { return filepath.Join(p.dir, "machines") }
func (p *Provider) machineDir(id string) string { return filepath.Join(p.machinesDir(), id) }

var machineID = regexp.MustCompile(`^(local|workstation)-[A-Za-z0-9-]{1,64}$`)

// load reads a record; ErrNotFound when there is none.
func (p *Provider) load(id string) (record, error) {
	if !machineID.MatchString(id) {
		return record{}, provider.ErrNotFound
	}
	var rec record
	err := readJSON(filepath.Join(p.machineDir(id), recordFile), &rec)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, provider.ErrNotFound
	}
	if err != nil {
		return record{}, fmt.Errorf("read record of %s: %w", id, err)
	}
	return rec, nil
}

func (p *Provider) save(rec record) error {
	if err := writeJSON(filepath.Join(p.machineDir(rec.ID), recordFile), rec); err != nil {
		return fmt.Errorf("write record of %s: %w", rec.ID, err)
	}
	return nil
}

// leftover says whether a folder without a record is there: a create that was killed before its first write.
func (p *Provider) leftover(id string) bool {
	if !machineID.MatchString(id) {
		return false
	}
	_, err := os.Stat(p.machineDir(id))
	return err == nil
}

// ids are those of all machines, sorted.
func (p *Provider) ids() ([]string, error) {
	entries, err := os.ReadDir(p.machinesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && machineID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// records are those of all machines; what a killed change left half-made is finished or removed on the way.
func (p *Provider) records(ctx context.Context) ([]record, error) {
	p.born.reap()
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	var out []record
	for _, id := range ids {
		rec, err := p.look(ctx, id)
		if errors.Is(err, provider.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
	return out, nil
}

// look reads a machine as it is. A change under way is answered as such; one that was killed is settled first.
func (p *Provider) look(ctx context.Context, id string) (record, error) {
	rec, err := p.load(id)
	if err == nil && rec.settled() {
		return rec, nil
	}
	if err != nil && !(errors.Is(err, provider.ErrNotFound) && p.leftover(id)) {
		return rec, err
	}
	if len(missingPrivileges()) > 0 {
		return rec, err // nobody to settle it; its phase says what it is
	}
	unlock, free, lockErr := p.tryLockMachine(id)
	if lockErr != nil {
		return record{}, lockErr
	}
	if !free {
		return rec, err
	}
	defer unlock()
	return p.settleOrForget(ctx, id)
}

func (r record) settled() bool { return r.Phase == phaseRunning || r.Phase == phaseStopped }

// settleOrForget is settle for whoever does not go on to make the machine: of one that is gone the lock goes too.
func (p *Provider) settleOrForget(ctx context.Context, id string) (record, error) {
	rec, err := p.settle(ctx, id)
	if !errors.Is(err, provider.ErrNotFound) {
		return rec, err
	}
	if err := p.removeDir(id); err != nil {
		return rec, err
	}
	return rec, provider.ErrNotFound
}

// settle, under the machine's lock, brings a record to one of its ends, or removes what never was a machine: all but
// its lock.
func (p *Provider) settle(ctx context.Context, id string) (record, error) {
	rec, err := p.load(id)
	if errors.Is(err, provider.ErrNotFound) {
		if err := p.removeFiles(id); err != nil {
			return rec, err
		}
		return rec, provider.ErrNotFound
	}
	if err != nil || rec.settled() {
		return rec, err
	}
	p.log.Info().Str("machine", id).Str("phase", string(rec.Phase)).Msg("found a change that was cut off")
	if rec.Phase == phaseRemoving {
		return rec, p.forget(ctx, rec)
	}
	if rec.Phase != phaseStopping && p.cameUp(ctx, rec) {
		rec.Phase = phaseRunning
		return rec, p.save(rec)
	}
	if rec.Phase == phaseCreating {
		return rec, p.forget(ctx, rec)
	}
	return p.halt(ctx, rec, provider.PowerOff)
}

// forget answers ErrNotFound once the machine is gone.
func (p *Provider) forget(ctx context.Context, rec record) error {
	if err := p.dismantle(ctx, rec); err != nil {
		return err
	}
	return provider.ErrNotFound
}

func (p *Provider) status(rec record) provider.Status {
	switch rec.Phase {
	case phaseCreating:
		return provider.StatusPending
	case phaseStarting:
		return provider.StatusStarting
	case phaseStopping, phaseRemoving:
		return provider.StatusStopping
	case phaseStopped:
		return provider.StatusStopped
	case phaseRunning:
		if rec.alive() {
			return provider.StatusRunning
		}
		return provider.StatusStopped // its first process ended, or the host was started anew
	}
	return provider.StatusUnknown
}

// allocate writes the first record of a machine, with the next free place on the underlay. A place that became free
// rests until the others were used.
func (p *Provider) allocate(ctx context.Context, rec record) (record, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return rec, err
	}
	defer unlock()
	inst, err := p.loadInstallation()
	if err != nil {
		return rec, err
	}
	taken, err := p.takenPlaces()
	if err != nil {
		return rec, err
	}
	rec.Index, err = inst.place(taken)
	if err != nil {
		return rec, err
	}
	inst.Next = rec.Index + 1
	if err := p.saveInstallation(inst); err != nil {
		return rec, err
	}
	rec.Addresses = inst.addresses(rec.Index)
	rec.Phase, rec.CreatedAt = phaseCreating, time.Now().UTC()
	return rec, p.save(rec)
}

func (p *Provider) takenPlaces() ([]int, error) {
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	var taken []int
	for _, id := range ids {
		rec, err := p.load(id)
		if errors.Is(err, provider.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		taken = append(taken, rec.Index)
	}
	slices.Sort(taken)
	return taken, nil
}

// lock holds what all machines share: the installation's record and the places on the underlay.
func (p *Provider) lock(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of local machines: %w", err)
	}
	return await(ctx, func() (func(), bool, error) { return tryLock(filepath.Join(p.dir, lockFile)) })
}

// lockMachine holds one machine, and makes its folder.
func (p *Provider) lockMachine(ctx context.Context, id string) (func(), error) {
	return await(ctx, func() (func(), bool, error) { return p.tryLockMachine(id) })
}

func (p *Provider) tryLockMachine(id string) (func(), bool, error) {
	if !machineID.MatchString(id) {
		return nil, false, provider.ErrNotFound
	}
	if err := os.MkdirAll(p.machineDir(id), 0o700); err != nil {
		return nil, false, fmt.Errorf("make machine's folder: %w", err)
	}
	return tryLock(filepath.Join(p.machineDir(id), lockFile))
}

// tryLock takes the lock if it is free. A file that was removed meanwhile, with its machine, is no lock.
func tryLock(path string) (func(), bool, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("take lock: %w", err)
	}
	mine, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, false, fmt.Errorf("look at lock: %w", err)
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(mine, there) {
		_ = f.Close()
		return nil, false, nil
	}
	return func() { _ = f.Close() }, true, nil
}

// await asks again and again until it is given or the context ends.
func await(ctx context.Context, try func() (func(), bool, error)) (func(), error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		unlock, ok, err := try()
		if err != nil || ok {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another change of local machines: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(text, '\n'))
}

// writeFile writes atomically, with mode 0600: the old text or the new one, also after a power cut.
func writeFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+strings.TrimSuffix(filepath.Base(path), ".json")+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
