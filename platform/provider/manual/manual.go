package manual

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"powernode/platform/provider"
	"powernode/schema"
)

// Type is the provider's type in the store.
const Type = "manual"

// Options of a provider.
type Options struct {
	StateDir string // the platform's; records are below its folder manual
	// Reachable says why machines elsewhere can't reach the platform; nil when they can.
	Reachable func() error
}

// Provider keeps which machines stand for instances.
type Provider struct {
	dir       string
	reachable func() error
}

var _ provider.Provider = (*Provider)(nil)

// New touches nothing.
func New(o Options) *Provider {
	return &Provider{dir: filepath.Join(o.StateDir, "manual"), reachable: o.Reachable}
}

// Type says manual.
func (p *Provider) Type() string { return Type }

// Capabilities say that machines are enrolled by whoever runs them, and that nothing else can be done from here.
func (p *Provider) Capabilities() []provider.Capability {
	return []provider.Capability{provider.CapabilityEnrollment}
}

// Architectures are none: a machine that is there tells its own when it enrols.
func (p *Provider) Architectures() []string { return nil }

// ConfigKeys are none.
func (p *Provider) ConfigKeys() []string { return nil }

// Regions is one: machines that reach each other by the addresses that they have. Further ones are the operator's.
func (p *Provider) Regions(context.Context) ([]provider.Region, error) {
	return []provider.Region{{Name: "default", Code: "default", Description: "Machines that reach each other by their own addresses."}}, nil
}

// InstanceTypes is one: a machine is as large as it is.
func (p *Provider) InstanceTypes(context.Context) ([]provider.InstanceType, error) {
	return []provider.InstanceType{{Name: "existing", Code: "existing", Description: "A machine that is there already."}}, nil
}

// Check says whether a machine could enrol: there are no credentials here.
func (p *Provider) Check(context.Context, provider.Connection) error { return p.reachable() }

// record is what is remembered of a machine.
type record struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	AccountID  string `json:"account_id"`
	NodeID     string `json:"node_id"`
	InstanceID string `json:"instance_id"`
}

func (r record) machine() provider.Machine {
	return provider.Machine{ID: r.ID, InstanceID: r.InstanceID, Name: r.Name, Status: provider.StatusUnknown, SyncedAt: time.Now().UTC()}
}

const prefix = "manual-"

var (
	label      = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	instanceID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)
	machineID  = regexp.MustCompile(`^manual-[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)
)

// Create records the instance. The machine is there already.
func (p *Provider) Create(ctx context.Context, in provider.CreateInput) (provider.Machine, error) {
	switch {
	case ctx.Err() != nil:
		return provider.Machine{}, fmt.Errorf("record a machine: %w", context.Cause(ctx))
	case !label.MatchString(in.Name):
		return provider.Machine{}, schema.Errorf(schema.InvalidArguments, "a machine's name is a DNS label of at most 63 characters, got %q", in.Name)
	case !instanceID.MatchString(in.InstanceID):
		return provider.Machine{}, schema.Errorf(schema.InvalidArguments, "an instance id has 1 to 64 letters, digits and hyphens, got %q", in.InstanceID)
	case in.AllocatePublicIP || in.Spot || len(in.SSHKeyIDs) > 0 || in.InitScript != "":
		return provider.Machine{}, provider.Unsupported("a machine that exists takes no address, key or script from here")
	}
	if known, err := p.load(prefix + in.InstanceID); !errors.Is(err, provider.ErrNotFound) {
		return known.machine(), err
	}
	r := record{ID: prefix + in.InstanceID, Name: in.Name, AccountID: in.AccountID, NodeID: in.NodeID, InstanceID: in.InstanceID}
	return r.machine(), p.save(r)
}

// Get answers a record. What became of the machine is not known here.
func (p *Provider) Get(_ context.Context, id string) (provider.Machine, error) {
	r, err := p.load(id)
	if err != nil {
		return provider.Machine{}, err
	}
	return r.machine(), nil
}

// List answers the account's records.
func (p *Provider) List(_ context.Context, accountID string) ([]provider.Machine, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	machines := []provider.Machine{}
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		if !isRecord {
			continue
		}
		r, err := p.load(id)
		if errors.Is(err, provider.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if r.AccountID == accountID {
			machines = append(machines, r.machine())
		}
	}
	return machines, nil
}

// Start refuses: whoever runs the machine starts it.
func (p *Provider) Start(_ context.Context, id string) error { return p.cannot(id, "start") }

// Stop refuses.
func (p *Provider) Stop(_ context.Context, id string, _ provider.StopMode) error {
	return p.cannot(id, "stop")
}

// Reboot refuses.
func (p *Provider) Reboot(_ context.Context, id string, _ provider.StopMode) error {
	return p.cannot(id, "reboot")
}

func (p *Provider) cannot(id, verb string) error {
	if _, err := p.load(id); err != nil {
		return err
	}
	return provider.Unsupported("a machine that exists can't be told to " + verb + " from here: whoever runs it does that")
}

// Terminate forgets the record. The machine lives on; its agent is told to leave by its document.
func (p *Provider) Terminate(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("forget a machine: %w", err)
	}
	if !machineID.MatchString(id) {
		return nil
	}
	if err := os.Remove(p.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a machine: %w", err)
	}
	return nil
}

func (p *Provider) path(id string) string { return filepath.Join(p.dir, id+".json") }

func (p *Provider) load(id string) (record, error) {
	if !machineID.MatchString(id) {
		return record{}, provider.ErrNotFound
	}
	raw, err := os.ReadFile(p.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, provider.ErrNotFound
	}
	if err != nil {
		return record{}, fmt.Errorf("read the record of a machine: %w", err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read the record of a machine from %s: %w", p.path(id), err)
	}
	return r, nil
}

// save writes the record whole or not at all.
func (p *Provider) save(r record) error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of records: %w", err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of a machine: %w", err)
	}
	f, err := os.CreateTemp(p.dir, ".record-*")
	if err != nil {
		return fmt.Errorf("write the record of a machine: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(raw, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the record of a machine: %w", err)
	}
	if err := os.Rename(f.Name(), p.path(r.ID)); err != nil {
		return fmt.Errorf("write the record of a machine: %w", err)
	}
	return nil
}
