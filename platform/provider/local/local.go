package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"powernode/nodeapi"
	"powernode/platform/provider"
	"powernode/schema"
)

// Type is the provider's type in the store.
const Type = "local"

// Options of a provider.
type Options struct {
	StateDir    string // the platform's; machines live below its folder local
	AgentBinary string // powernode-agent, copied into a machine at each start
	Log         zerolog.Logger
}

// Provider makes machines on this host. Several, also of several processes, may work on one state directory.
type Provider struct {
	dir   string
	agent string
	log   zerolog.Logger
	born  children
}

var _ provider.Provider = (*Provider)(nil)

// New makes nothing on the host.
func New(o Options) *Provider {
	dir := filepath.Join(o.StateDir, "local")
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return &Provider{dir: dir, agent: o.AgentBinary, log: o.Log}
}

// Type says local.
func (p *Provider) Type() string { return Type }

// Capabilities are to start, stop and reboot machines, and to know which runs.
func (p *Provider) Capabilities() []provider.Capability {
	return []provider.Capability{provider.CapabilityPower, provider.CapabilitySync}
}

// Architectures are this host's: its machines run on its processors.
func (p *Provider) Architectures() []string { return []string{runtime.GOARCH} }

// ConfigKeys are none: there is one host.
func (p *Provider) ConfigKeys() []string { return nil }

// Regions is this host.
func (p *Provider) Regions(context.Context) ([]provider.Region, error) {
	return []provider.Region{provider.LocalRegion()}, nil
}

// InstanceTypes are sizes by name: machines share the host.
func (p *Provider) InstanceTypes(context.Context) ([]provider.InstanceType, error) {
	return provider.LocalSizes(), nil
}

// Check says whether this process can make machines here. There are no credentials.
func (p *Provider) Check(context.Context, provider.Connection) error {
	if err := requirePrivileges(); err != nil {
		return err
	}
	return p.checkPlace()
}

// Create makes a machine and starts it. A machine of the same instance that is there already is the answer.
func (p *Provider) Create(ctx context.Context, in provider.CreateInput) (provider.Machine, error) {
	if err := check(in); err != nil {
		return provider.Machine{}, err
	}
	want := record{
		ID: "local-" + in.InstanceID, Kind: kindNode, Name: in.Name,
		Tags: map[string]string{tagAccount: in.AccountID, tagNode: in.NodeID, tagInstance: in.InstanceID},
	}
	rec, err := p.create(ctx, want, in.Enrollment)
	if err != nil {
		return provider.Machine{}, err
	}
	return p.machine(rec), nil
}

var (
	label      = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	instanceID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)
)

func check(in provider.CreateInput) error {
	switch {
	case !label.MatchString(in.Name):
		return &schema.Error{Code: schema.InvalidArguments, Message: fmt.Sprintf("a machine's name is a DNS label of at most 63 characters, got %q", in.Name)}
	case !instanceID.MatchString(in.InstanceID):
		return &schema.Error{Code: schema.InvalidArguments, Message: fmt.Sprintf("an instance id has 1 to 64 letters, digits and hyphens, got %q", in.InstanceID)}
	case in.AllocatePublicIP:
		return &schema.Error{Code: schema.PreconditionFailed, Message: "the provider local has no public addresses"}
	case in.Spot:
		return &schema.Error{Code: schema.PreconditionFailed, Message: "the provider local has no spot machines"}
	case len(in.SSHKeyIDs) > 0:
		return &schema.Error{Code: schema.PreconditionFailed, Message: "the provider local places no SSH keys: use powernode local exec"}
	case in.InitScript != "":
		return &schema.Error{Code: schema.PreconditionFailed, Message: "the provider local runs no init script"}
	}
	return nil
}

// create is Create for nodes and workstations.
func (p *Provider) create(ctx context.Context, want record, enrollment []byte) (record, error) {
	if err := requirePrivileges(); err != nil {
		return record{}, err
	}
	if err := p.checkPlace(); err != nil {
		return record{}, err
	}
	ports, err := agentPorts(enrollment)
	if err != nil {
		return record{}, err
	}
	inst, err := p.ensureInstallation(ctx, ports)
	if err != nil {
		return record{}, err
	}
	unlock, err := p.lockMachine(ctx, want.ID)
	if err != nil {
		return record{}, err
	}
	defer unlock()
	rec, err := p.settle(ctx, want.ID)
	if err == nil {
		return rec, nil
	}
	if !errors.Is(err, provider.ErrNotFound) {
		return record{}, err
	}
	began := time.Now()
	rec, err = p.make(ctx, inst, want, enrollment)
	if err != nil {
		return record{}, errors.Join(err, p.removeAfter(ctx, want.ID))
	}
	p.log.Info().Str("machine", rec.ID).Str("name", rec.Name).Dur("took", time.Since(began)).Msg("local machine made")
	return rec, nil
}

// checkPlace refuses a state directory that machines would see.
func (p *Provider) checkPlace() error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(p.dir))
	if errors.Is(err, fs.ErrNotExist) {
		dir, err = filepath.Dir(p.dir), nil
	}
	if err != nil {
		return fmt.Errorf("find state directory: %w", err)
	}
	for _, shown := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64"} {
		if rel, err := filepath.Rel(shown, dir); err == nil && filepath.IsLocal(rel) {
			return &schema.Error{Code: schema.PreconditionFailed, Message: fmt.Sprintf("the state directory lies below %s, which local machines see: choose another with --state-dir", shown)}
		}
	}
	return nil
}

// agentPorts are the platform's ports that the machine is told to speak to.
func agentPorts(enrollment []byte) ([]uint16, error) {
	if len(enrollment) == 0 {
		return nil, nil
	}
	var e nodeapi.Enrollment
	if err := json.Unmarshal(enrollment, &e); err != nil {
		return nil, errors.New("read enrolment: it is not the JSON of an enrolment") // its text holds a token
	}
	return portsOf(e.PlatformURLs)
}

func portsOf(urls []string) ([]uint16, error) {
	var ports []uint16
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			return nil, errors.New("read the platform's URL: it is malformed") // its text may hold a token
		}
		port := u.Port()
		if port == "" {
			port = "443"
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("read port of the platform's URL: %w", err)
		}
		ports = append(ports, uint16(n))
	}
	return ports, nil
}

// make makes the machine of a record that is not there, under the machine's lock.
func (p *Provider) make(ctx context.Context, inst installation, rec record, enrollment []byte) (record, error) {
	rec, err := p.allocate(ctx, rec)
	if err != nil {
		return rec, err
	}
	if err := p.makeFiles(rec); err != nil {
		return rec, err
	}
	return p.start(ctx, inst, rec, enrollment)
}

// removeAfter takes back a create that failed, also when its context is at its end.
func (p *Provider) removeAfter(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	rec, err := p.load(id)
	if errors.Is(err, provider.ErrNotFound) {
		return p.removeDir(id)
	}
	if err != nil {
		return err
	}
	return p.remove(ctx, rec)
}

// Get answers a machine by the provider's id.
func (p *Provider) Get(ctx context.Context, id string) (provider.Machine, error) {
	rec, err := p.look(ctx, id)
	if err != nil {
		return provider.Machine{}, err
	}
	if rec.Kind != kindNode {
		return provider.Machine{}, provider.ErrNotFound
	}
	return p.machine(rec), nil
}

// List answers the account's machines. An operator's workstation is none.
func (p *Provider) List(ctx context.Context, accountID string) ([]provider.Machine, error) {
	recs, err := p.records(ctx)
	if err != nil {
		return nil, err
	}
	out := []provider.Machine{}
	for _, rec := range recs {
		if rec.Kind == kindNode && rec.Tags[tagAccount] == accountID {
			out = append(out, p.machine(rec))
		}
	}
	return out, nil
}

func (p *Provider) machine(rec record) provider.Machine {
	m := provider.Machine{
		ID: rec.ID, InstanceID: rec.Tags[tagInstance], Name: rec.Name, Status: p.status(rec), SyncedAt: time.Now().UTC(),
	}
	if len(rec.Addresses) > 0 {
		m.PrivateAddress = rec.Addresses[0]
	}
	return m
}

// Start boots a machine that is stopped from the files that it has.
func (p *Provider) Start(ctx context.Context, id string) error {
	return p.change(ctx, id, func(inst installation, rec record) error { return p.boot(ctx, inst, rec) })
}

// Stop ends a machine's processes and keeps its files.
func (p *Provider) Stop(ctx context.Context, id string, mode provider.StopMode) error {
	return p.change(ctx, id, func(_ installation, rec record) error {
		_, err := p.halt(ctx, rec, mode)
		return err
	})
}

// Reboot is Stop and Start; a machine that is stopped is started.
func (p *Provider) Reboot(ctx context.Context, id string, mode provider.StopMode) error {
	return p.change(ctx, id, func(inst installation, rec record) error {
		rec, err := p.halt(ctx, rec, mode)
		if err != nil {
			return err
		}
		return p.boot(ctx, inst, rec)
	})
}

// change runs one change of a machine that is there, under its lock.
func (p *Provider) change(ctx context.Context, id string, do func(installation, record) error) error {
	if _, err := p.load(id); err != nil {
		return err
	}
	if err := requirePrivileges(); err != nil {
		return err
	}
	inst, err := p.ensureInstallation(ctx, nil)
	if err != nil {
		return err
	}
	unlock, err := p.lockMachine(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := p.settleOrForget(ctx, id)
	if err != nil {
		return err
	}
	return do(inst, rec)
}

// boot starts a machine that is not running, with the enrolment that it had not used yet.
func (p *Provider) boot(ctx context.Context, inst installation, rec record) error {
	if rec.alive() {
		return nil
	}
	if rec.Phase == phaseRunning { // it ended by itself, and nobody has taken away what it had of the host
		if err := p.end(ctx, rec); err != nil {
			return err
		}
	}
	kept := filepath.Join(p.machineDir(rec.ID), enrollmentFile)
	enrollment, err := os.ReadFile(kept)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read kept enrolment: %w", err)
	}
	rec, err = p.start(ctx, inst, rec, enrollment)
	if err != nil {
		return errors.Join(err, p.end(context.WithoutCancel(ctx), rec))
	}
	if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove kept enrolment: %w", err)
	}
	return nil
}

// Terminate removes a machine and its files; one that is gone is success.
func (p *Provider) Terminate(ctx context.Context, id string) error {
	_, err := p.load(id)
	if errors.Is(err, provider.ErrNotFound) && !p.leftover(id) {
		return nil
	}
	if err != nil && !errors.Is(err, provider.ErrNotFound) {
		return err
	}
	if err := requirePrivileges(); err != nil {
		return err
	}
	unlock, err := p.lockMachine(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := p.settleOrForget(ctx, id)
	if errors.Is(err, provider.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.remove(ctx, rec)
}

// AgentAPIAddress is the address on which the platform listens for this installation's machines: the bridge's, on the
// host's side, made if need be, and the same for the life of the state directory. Without privileges it is an error
// unless the bridge is there.
func (p *Provider) AgentAPIAddress(ctx context.Context) (netip.Addr, error) {
	if missing := missingPrivileges(); len(missing) > 0 {
		inst, err := p.loadInstallation()
		if err == nil && inst.bridgeStands() {
			return inst.host6(), nil
		}
		return netip.Addr{}, requirePrivileges()
	}
	if err := p.checkPlace(); err != nil {
		return netip.Addr{}, err
	}
	inst, err := p.ensureInstallation(ctx, nil)
	if err != nil {
		return netip.Addr{}, err
	}
	return inst.host6(), nil
}

// AllowAgentAPI lets machines reach that port of the bridge's address. Create does it for the URLs of an enrolment.
func (p *Provider) AllowAgentAPI(ctx context.Context, port uint16) error {
	if err := requirePrivileges(); err != nil {
		return err
	}
	_, err := p.ensureInstallation(ctx, []uint16{port})
	return err
}
