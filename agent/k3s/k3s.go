package k3s

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent/artifact"
	"powernode/agent/service"
	"powernode/nodeapi"
	"powernode/sdwan"
)

// Platform is what this package asks of the platform; *nodeapi.Client satisfies it.
type Platform interface {
	Handshake(ctx context.Context, in nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error)
}

// Options are what a Subsystem needs.
type Options struct {
	Root     string // host paths are below it; empty is the host itself
	StateDir string // the agent's
	BootID   string
	Platform func() (Platform, error) // an error while there is no connection
	Store    *artifact.Store          // where the binary is fetched to; nothing stays there
	Services service.Manager
	// LogToFile makes K3s write to /var/log/k3s.log: where there is no journal.
	LogToFile bool
	// CgroupV1 says that the host's controllers are of version 1.
	CgroupV1 bool
	// HasAddress says whether the machine has an address; nil asks the kernel.
	HasAddress func(netip.Addr) (bool, error)
	Log        zerolog.Logger
}

// Subsystem is the k3s subsystem.
type Subsystem struct {
	o       Options
	root    root
	state   stateFile
	host    host
	changed chan struct{}
	look    chan struct{} // measure now

	pass     sync.Mutex // one Reconcile at a time
	joins    retries
	told     string // the removal of the last stopped that this process has sent
	findings findings
	drains   oneByOne

	mu       sync.Mutex
	want     target
	have     state
	seen     bool // a document was seen
	measured *sdwan.K3sReport
	now      func() time.Time
}

// New makes the subsystem; nothing is touched before the first Reconcile.
func New(o Options) *Subsystem {
	if o.HasAddress == nil {
		o.HasAddress = service.HasAddress
	}
	return &Subsystem{o: o, root: root(o.Root), state: stateFile{o.StateDir + "/k3s"}, host: newHost(root(o.Root)),
		changed: make(chan struct{}, 1), look: make(chan struct{}, 1), now: time.Now}
}

// Name is the subsystem's name in reports.
func (s *Subsystem) Name() string { return "k3s" }

// Changes gives a value when something about K3s has changed.
func (s *Subsystem) Changes() <-chan struct{} { return s.changed }

// InPlace says whether the binary with that SHA-256 is installed.
func (s *Subsystem) InPlace(sum string) bool {
	got, err := s.o.Store.Sum(s.root.path(binaryPath))
	return err == nil && got == sum
}

// publish gives the measuring loop what to look at.
func (s *Subsystem) publish(t target, st state) {
	s.mu.Lock()
	s.want, s.have, s.seen = t, st, true
	s.mu.Unlock()
	wake(s.look)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// retries is the rhythm of join requests: 1 s to 30 s.
type retries struct {
	key   string // what is asked for; another question starts anew
	count int
}

func (r *retries) next(key string) time.Duration {
	if r.key != key {
		*r = retries{key: key}
	}
	d := time.Second << min(r.count, 5)
	r.count++
	return min(d, 30*time.Second)
}

func (r *retries) reset() { *r = retries{} }

// findings are the differences between a running member's configuration and the wanted one.
type findings struct {
	mu   sync.Mutex
	list []sdwan.Finding
}

// set replaces them, keeping since when an equal one was there.
func (f *findings) set(now time.Time, diffs []difference) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []sdwan.Finding
	for _, d := range diffs {
		n := sdwan.Finding{Finding: "k3s_setting_drift", Evidence: d.key + ": desired " + d.want + ", actual " + d.have, Since: now}
		for _, old := range f.list {
			if old.Evidence == n.Evidence {
				n.Since = old.Since
			}
		}
		out = append(out, n)
	}
	f.list = out
}

func (f *findings) get() []sdwan.Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]sdwan.Finding(nil), f.list...)
}
