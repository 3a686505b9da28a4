package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"powernode/nodeapi"
	"powernode/sdwan"
)

// Platform is what the runner and its subsystems ask of the platform. *nodeapi.Client satisfies it.
type Platform interface {
	Desired(ctx context.Context, after int64, incarnation string, wait time.Duration) (*sdwan.Document, error)
	Report(ctx context.Context, in sdwan.Report) (nodeapi.ReportAnswer, error)
}

// Options say how an agent runs.
type Options struct {
	StateDir   string // 0700
	RunDir     string // lives as long as the machine is up: the boot id is there
	Version    string
	Enrollment string // path of a 0600 file, removed after use; empty or absent once enrolled
	// Subsystems makes what reconciles the machine. They get the platform through Connection, before there is one.
	Subsystems func(*Connection) []Subsystem
	// Disturbed gives a value when the machine was changed, by whomever. Those of the subsystems named in Disturbs
	// that are in order look again then, so that what somebody took away is back at once. Nil never gives one.
	Disturbed <-chan struct{}
	Disturbs  []string
	Log       zerolog.Logger
}

// Agent runs on one machine.
type Agent struct {
	o       Options
	state   *state
	conn    *Connection
	bootID  string
	started time.Time
	workers []*worker
	tasks   *tasks
	changed chan struct{} // a report is due; room for one
	current atomic.Pointer[sdwan.Document]
	kept    version       // of the document on disk; restore's, then poll's alone
	gone    chan struct{} // closed once: the machine is clean, and the platform knows
	leaving sync.Once

	observers sync.WaitGroup
}

// Connection is the platform as subsystems see it: they exist before the agent has enrolled, and also while the
// platform is away.
type Connection struct {
	bootID string
	id     atomic.Pointer[identity]
	client atomic.Pointer[nodeapi.Client]
}

// BootID names this start of the machine.
func (c *Connection) BootID() string { return c.bootID }

// ErrNotEnrolled is what Connection.Client answers before the agent has an identity.
var ErrNotEnrolled = errors.New("the agent has not enrolled yet")

// Client answers the agent's client of the platform.
func (c *Connection) Client() (*nodeapi.Client, error) {
	if cl := c.client.Load(); cl != nil {
		return cl, nil
	}
	return nil, ErrNotEnrolled
}

// use takes an identity, the first or a renewed one. The client is made anew: a connection keeps the certificate that it
// was made with.
func (c *Connection) use(id *identity) error {
	cl, err := nodeapi.NewClient(nodeapi.ClientOptions{URLs: id.PlatformURLs, CAPEM: id.CAPEM, Certificate: id.certificate})
	if err != nil {
		return err
	}
	c.id.Store(id)
	if old := c.client.Swap(cl); old != nil {
		old.CloseIdle()
	}
	return nil
}

// Run runs the agent until ctx ends. What it has started on the machine stays.
func Run(ctx context.Context, o Options) (err error) {
	s, err := openState(o.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	boot, started, err := bootID(o.RunDir)
	if err != nil { // the data plane doesn't need it
		o.Log.Error().Err(err).Msg("the boot id is not kept: the agent's next start will look like one of the machine")
	}
	a := &Agent{o: o, state: s, conn: &Connection{bootID: boot}, bootID: boot, started: started, changed: make(chan struct{}, 1), gone: make(chan struct{})}
	a.tasks = newTasks(a.wakeReport)
	for _, sub := range o.Subsystems(a.conn) {
		a.workers = append(a.workers, newWorker(sub, o.Log, a.wakeReport))
	}
	return a.run(ctx)
}

func (a *Agent) run(ctx context.Context) error {
	id, err := a.state.readIdentity()
	if err != nil {
		// The data plane doesn't need it; enrolment below says what is wrong.
		a.o.Log.Error().Err(err).Msg("identity is unreadable")
	}
	a.restore(id)
	if id == nil && err == nil && a.o.Enrollment == "" {
		return fmt.Errorf("%w: run powernode-agent enroll", ErrNotEnrolled)
	}

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer a.observers.Wait()
	defer wg.Wait()
	defer cancel()
	for _, w := range a.workers {
		wg.Go(func() { w.run(ctx) })
		if r, ok := w.sub.(Runner); ok {
			wg.Go(func() { a.runSubsystem(ctx, w.sub.Name(), r) })
		}
		if n, ok := w.sub.(Notifier); ok {
			wg.Go(func() { a.forward(ctx, n.Changes()) })
		}
	}
	wg.Go(func() { a.watch(ctx) })
	if !a.ensureIdentity(ctx, id) {
		return nil
	}
	wg.Go(func() { a.poll(ctx) })
	wg.Go(func() { a.reportLoop(ctx) })
	wg.Go(func() { a.renewLoop(ctx) })
	wg.Go(func() { a.tasks.wait(ctx) })
	select {
	case <-a.gone:
		return ErrLeft
	case <-ctx.Done():
		return nil
	}
}

// restore applies the last good document before the platform has been asked.
func (a *Agent) restore(id *identity) {
	doc, err := a.state.readDocument()
	if err != nil {
		a.o.Log.Error().Err(err).Msg("last document")
		return
	}
	if doc == nil || (id != nil && doc.Instance.ID != id.InstanceID) {
		return
	}
	a.kept = versionOf(doc)
	a.o.Log.Info().Int64("revision", doc.Revision).Msg("applying the last document")
	a.dispatch(doc)
}

// dispatch hands a document to every subsystem; none waits for another.
func (a *Agent) dispatch(doc *sdwan.Document) {
	a.current.Store(doc)
	for _, w := range a.workers {
		w.offer(doc)
	}
}

func (a *Agent) wakeReport() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *Agent) forward(ctx context.Context, changes <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			a.wakeReport()
		}
	}
}

// watch hands on that the machine was changed. A subsystem that goes on failing keeps to its backoff: its own attempts
// may be what changes the machine.
func (a *Agent) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-a.o.Disturbed:
			if !ok {
				return
			}
		}
		for _, w := range a.workers {
			if slices.Contains(a.o.Disturbs, w.sub.Name()) && w.failures.Load() < keepsFailing {
				w.nudge()
			}
		}
	}
}

// runSubsystem keeps a subsystem's own work going; one that returns early is started again.
func (a *Agent) runSubsystem(ctx context.Context, name string, r Runner) {
	b := backoff{low: time.Second, high: 5 * time.Minute}
	for ctx.Err() == nil {
		if err := guard(func() error { return r.Run(ctx) }); err != nil && ctx.Err() == nil {
			a.o.Log.Error().Err(err).Str("subsystem", name).Msg("subsystem's own work ended")
		}
		pause(ctx, b.next())
	}
}

// ensureIdentity enrols where there is no usable identity, for as long as it takes; false when ctx ended first.
func (a *Agent) ensureIdentity(ctx context.Context, id *identity) bool {
	b := backoff{low: time.Second, high: 5 * time.Minute}
	for {
		got, err := a.identify(ctx, id)
		if err == nil {
			err = a.conn.use(got)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		a.o.Log.Error().Err(err).Msg("no identity yet")
		if !pause(ctx, b.next()) {
			return false
		}
	}
}

// identify keeps a valid identity and takes the enrolment file otherwise: also for another instance, and when the
// certificate has ended. The file goes in any case, for it is a secret.
func (a *Agent) identify(ctx context.Context, id *identity) (*identity, error) {
	if id == nil { // it could not be read before
		var err error
		if id, err = a.state.readIdentity(); err != nil && a.o.Enrollment == "" {
			return nil, err
		}
	}
	if a.o.Enrollment == "" {
		if id == nil {
			return nil, ErrNotEnrolled
		}
		return id, nil
	}
	e, err := ReadEnrollment(a.o.Enrollment)
	if err != nil {
		if id != nil {
			return id, nil
		}
		return nil, err
	}
	if id == nil || id.InstanceID != e.InstanceID || time.Now().After(id.NotAfter) {
		if id, err = a.state.enroll(ctx, e, a.o.Version); err != nil {
			return nil, err
		}
		a.o.Log.Info().Str("instance_id", id.InstanceID).Msg("enrolled")
	}
	return id, removeFile(a.o.Enrollment)
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// guard makes a panic an error: it ends one call, not the agent.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return f()
}
