package firewall

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"powernode/sdwan"
)

// tableName is the name of our table, of family inet.
const tableName = "powernode"

// Options are what a Subsystem needs.
type Options struct {
	Log zerolog.Logger
}

// Subsystem is the agent's firewall subsystem.
type Subsystem struct {
	log  zerolog.Logger
	host host
	mu   sync.Mutex // one Reconcile at a time
}

// host is what the subsystem needs of a machine.
type host interface {
	// Read answers nil when our table is not there.
	Read(ctx context.Context) (*table, error)
	// Write makes the table as wanted in one transaction; have is what Read answered.
	Write(ctx context.Context, have *table, want table) error
	Remove(ctx context.Context) error
	Available(ctx context.Context) bool
}

// New makes the subsystem; nothing is touched before the first Reconcile.
func New(o Options) *Subsystem { return &Subsystem{log: o.Log, host: linuxHost{}} }

// Name is the subsystem's name in reports.
func (s *Subsystem) Name() string { return "firewall" }

// Reconcile makes our table what the document says. A document without a table has no opinion; one with an empty table
// and without networks wants none of ours.
func (s *Subsystem) Reconcile(ctx context.Context, doc *sdwan.Document) error {
	if doc == nil {
		return errors.New("there is no document")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var portErr error
	if len(doc.PortMappings) > 0 {
		portErr = fmt.Errorf("%d port mappings are not available yet", len(doc.PortMappings))
	}
	f := doc.Firewall
	switch {
	case f.Table == "":
		return portErr
	case f.Table != tableName:
		return fmt.Errorf("the document names table %q; ours is %s", f.Table, tableName)
	}
	want, err := compile(f)
	if err != nil {
		return err // the rules in place stay
	}
	have, err := s.host.Read(ctx)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	if len(doc.Networks) == 0 && len(f.Sets)+len(f.Input)+len(f.Forward)+len(f.Output) == 0 {
		return errors.Join(portErr, s.remove(ctx, have))
	}
	return errors.Join(portErr, s.write(ctx, have, want, f.Hash))
}

func (s *Subsystem) remove(ctx context.Context, have *table) error {
	if have == nil {
		return nil
	}
	if err := s.host.Remove(ctx); err != nil {
		return fmt.Errorf("remove table inet %s: %w", tableName, err)
	}
	s.log.Info().Msg("firewall: removed")
	return nil
}

// write applies and looks again: rules that are not as written are an error, never a success.
func (s *Subsystem) write(ctx context.Context, have *table, want table, hash string) error {
	if have != nil && have.equal(want) {
		return nil
	}
	err := s.host.Write(ctx, have, want)
	if errors.Is(err, unix.ENOENT) { // somebody took part of it away since it was read
		if have, err = s.host.Read(ctx); err != nil {
			return fmt.Errorf("observe: %w", err)
		}
		err = s.host.Write(ctx, have, want)
	}
	if err != nil {
		return fmt.Errorf("replace table inet %s: %w", tableName, err)
	}
	now, err := s.host.Read(ctx)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	if now == nil || !now.equal(want) {
		return fmt.Errorf("table inet %s is not as written", tableName)
	}
	s.log.Info().Str("hash", hash).Int("input", len(want.Chains["input"].Digests)).
		Int("forward", len(want.Chains["forward"].Digests)).Int("output", len(want.Chains["output"].Digests)).
		Int("sets", len(want.Sets)).Msg("firewall: applied")
	return nil
}

// Observe says whether the kernel has nftables.
func (s *Subsystem) Observe(ctx context.Context, report *sdwan.Report) error {
	if report.Capabilities == nil {
		report.Capabilities = &sdwan.Capabilities{}
	}
	report.Capabilities.NFTables = s.host.Available(ctx)
	return nil
}
