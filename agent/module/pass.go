package module

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"powernode/agent/service"
	"powernode/sdwan"
)

// pass is one look at the machine.
type pass struct {
	s     *Subsystem
	j     *journal
	how   tells
	out   *outcome
	owner map[string]string // unit → id of the module of this document that has it
}

func (p *pass) save() error { return p.j.write(p.s.journalPath()) }

// read reads the document's modules; one that is refused keeps what it has on the machine.
func (p *pass) read(want *sdwan.Document) []wanted {
	var out []wanted
	for _, m := range want.Modules {
		w, err := p.s.read(m)
		if err == nil {
			err = p.claim(w)
		}
		if err != nil {
			p.out.fail(m.ModuleID, fmt.Errorf("module %s: %w", m.Name, err))
			continue
		}
		out = append(out, w)
	}
	return out
}

// claim gives a module its services, which are a machine's: the first that names one has it.
func (p *pass) claim(w wanted) error {
	for _, u := range w.units {
		if _, taken := p.owner[u.Name]; taken {
			return fmt.Errorf("service %s: another module of this machine has it", strings.TrimPrefix(u.Name, unitPrefix))
		}
	}
	for _, u := range w.units {
		p.owner[u.Name] = w.module.ModuleID
	}
	return nil
}

// detach takes away the modules that the document names no more, the last first.
func (p *pass) detach(ctx context.Context, want *sdwan.Document) {
	gone := slices.DeleteFunc(slices.Clone(p.j.Modules), func(e *entry) bool {
		return slices.ContainsFunc(want.Modules, func(m sdwan.Module) bool { return m.ModuleID == e.ModuleID })
	})
	slices.Reverse(gone)
	for _, e := range gone {
		if err := p.remove(ctx, e); err != nil {
			p.out.fail(e.ModuleID, fmt.Errorf("take module %s away: %w", e.Name, err))
		}
	}
}

func (p *pass) remove(ctx context.Context, e *entry) error {
	for _, unit := range slices.Sorted(maps.Keys(e.Services)) {
		if _, another := p.owner[unit]; another {
			continue
		}
		if err := p.s.o.Services.Stop(ctx, unit); err != nil {
			return err
		}
	}
	for _, path := range e.Files {
		if err := p.s.disk.remove(path); err != nil {
			return err
		}
	}
	p.j.drop(e.ModuleID)
	delete(p.s.told, e.ModuleID)
	p.s.o.Log.Info().Str("module", e.Name).Str("version", e.Version).Msg("module taken away")
	return p.folders()
}

// folders takes away those that we made and nobody needs, and saves the journal.
func (p *pass) folders() error {
	needed := func(folder string) bool {
		return slices.ContainsFunc(p.j.Modules, func(e *entry) bool {
			return slices.ContainsFunc(e.Files, func(f string) bool { return strings.HasPrefix(f, folder+"/") })
		})
	}
	var kept, idle []string
	for _, folder := range p.j.Folders {
		if needed(folder) {
			kept = append(kept, folder)
		} else {
			idle = append(idle, folder)
		}
	}
	left, err := p.s.disk.removeFolders(idle)
	p.j.Folders = with(kept, left...)
	return errors.Join(err, p.save())
}

// deviations are what is not as wanted, in words that tell one from another. A service that is not running is none: a
// machine that starts has none running yet.
type deviations struct {
	files    []file
	packages []string
	words    []string
}

func (p *pass) observe(ctx context.Context, w wanted) (d deviations, err error) {
	files := w.files
	if w.artifact != nil {
		files = append(slices.Clone(files), file{path: sdwan.ArtifactPath(w.module.Name), mode: 0o755, size: -1, sum: w.artifact.SHA256})
	}
	for _, f := range files {
		is, err := p.s.disk.look(f)
		if err != nil {
			return d, err
		}
		if is != "" {
			d.files, d.words = append(d.files, f), append(d.words, f.path+" is "+is)
		}
	}
	if len(w.packages) > 0 {
		installed, err := p.s.o.Packages.Installed(ctx, w.packages)
		if err != nil {
			return d, err
		}
		d.packages = slices.DeleteFunc(slices.Clone(w.packages), func(name string) bool { return installed[name] })
		for _, name := range d.packages {
			d.words = append(d.words, "package "+name+" is absent")
		}
	}
	return d, nil
}

// attach puts a module in place and answers the digest of what is there: the document's, or, where it was changed by
// hand, another one; "" where it is not in place.
func (p *pass) attach(ctx context.Context, w wanted) (string, error) {
	d, err := p.observe(ctx, w)
	if err != nil {
		return "", err
	}
	before := p.j.of(w.module.ModuleID)
	settled := before != nil && before.Settled && before.Key == w.key
	if settled && len(d.words) > 0 && !p.how.repair {
		if is := hashOf(w.module.Digest, d.words); p.tell(w, d, is) {
			return is, nil
		}
	}
	if !settled || len(d.words) > 0 {
		if err := p.change(ctx, w, d); err != nil {
			return "", err
		}
		p.s.o.Log.Info().Str("module", w.module.Name).Str("version", w.module.Version).Msg("module put in place")
	}
	delete(p.s.told, w.module.ModuleID)
	if err := p.run(ctx, w); err != nil {
		return w.module.Digest, err
	}
	if a := w.module.Artifact; a != nil && installedByK3s(w.module.Name) && !p.s.o.Elsewhere(a.SHA256) {
		p.out.waiting = append(p.out.waiting, w.module.Name)
		return "", nil
	}
	return w.module.Digest, nil
}

// tell says whether a deviation is still to be reported before it is put right: looks come as they like, and a report
// takes its time.
func (p *pass) tell(w wanted, d deviations, is string) bool {
	before := p.s.told[w.module.ModuleID]
	if before.digest == is && p.s.now().Sub(before.since) >= tellFirst {
		return false
	}
	if before.digest != is {
		p.s.told[w.module.ModuleID] = told{digest: is, since: p.s.now()}
		p.s.o.Log.Warn().Str("module", w.module.Name).Strs("found", d.words).Msg("module was changed by hand")
	}
	p.out.deviated = append(p.out.deviated, w.module.Name)
	return true
}

// change makes the machine what a module wants: packages, artefact, services that are no more, files, services, files
// that are no more.
func (p *pass) change(ctx context.Context, w wanted, d deviations) error {
	e, old, err := p.announce(w, d)
	if err != nil {
		return err
	}
	if err := p.install(ctx, d.packages); err != nil {
		return err
	}
	files, err := p.fetch(ctx, w, d.files)
	if err != nil {
		return err
	}
	for unit := range old {
		if _, another := p.owner[unit]; w.hasUnit(unit) || another {
			continue
		}
		if err := p.s.o.Services.Stop(ctx, unit); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := p.s.disk.write(f); err != nil {
			return err
		}
	}
	if err := p.start(ctx, e, w); err != nil {
		return err
	}
	for _, path := range without(e.Files, w.paths()...) {
		if err := p.s.disk.remove(path); err != nil {
			return err
		}
	}
	e.Files, e.Key, e.Settled = w.paths(), w.key, true
	maps.DeleteFunc(e.Services, func(unit, _ string) bool { return !w.hasUnit(unit) })
	return p.folders()
}

// announce writes into the journal what is about to be changed. old are the services that were there.
func (p *pass) announce(w wanted, d deviations) (e *entry, old map[string]string, err error) {
	if e = p.j.of(w.module.ModuleID); e == nil {
		e = &entry{ModuleID: w.module.ModuleID, Services: map[string]string{}}
		p.j.Modules = append(p.j.Modules, e)
	}
	if e.Services == nil {
		e.Services = map[string]string{}
	}
	old = maps.Clone(e.Services)
	e.Name, e.Version, e.Settled = w.module.Name, w.module.Version, false
	e.Files = with(e.Files, w.paths()...)
	for _, u := range w.units {
		if _, there := e.Services[u.Name]; !there {
			e.Services[u.Name] = ""
		}
		if len(d.files) > 0 {
			e.Restart = with(e.Restart, u.Name)
		}
	}
	for _, f := range d.files {
		missing, err := p.s.disk.missing(f.path)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", f.path, err)
		}
		p.j.Folders = with(p.j.Folders, missing...)
	}
	p.j.Packages = with(p.j.Packages, d.packages...)
	return e, old, p.save()
}

func (p *pass) install(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := p.s.o.Packages.Install(ctx, names); err != nil {
		return fmt.Errorf("install the packages %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// fetch gives the artefact among the files its source.
func (p *pass) fetch(ctx context.Context, w wanted, files []file) ([]file, error) {
	out := slices.Clone(files)
	for i, f := range out {
		if f.size >= 0 {
			continue
		}
		path, err := p.s.o.Store.Fetch(ctx, *w.artifact)
		if err != nil {
			return nil, err
		}
		out[i].source = path
	}
	return out, nil
}

// start has the services run as wanted, with the files that are there now. A service whose own description changed is
// started anew by Ensure; another one is told to where its files changed.
func (p *pass) start(ctx context.Context, e *entry, w wanted) error {
	for _, u := range w.units {
		is := hashOf(u)
		before, err := p.s.o.Services.Status(ctx, u.Name)
		if err != nil {
			return err
		}
		if err := p.s.o.Services.Ensure(ctx, u); err != nil {
			return err
		}
		ran := before.State != service.Absent && before.State != service.Stopped
		old := 0
		if ran && e.Services[u.Name] == is && slices.Contains(e.Restart, u.Name) {
			if err := p.s.o.Services.Restart(ctx, u.Name); err != nil {
				return err
			}
			old = before.PID
		}
		if _, err := p.came(ctx, u, old, starting); err != nil { // whether it runs is run's to say
			return err
		}
		e.Services[u.Name], e.Restart = is, without(e.Restart, u.Name)
		if err := p.save(); err != nil {
			return err
		}
	}
	e.Restart = nil
	return nil
}

const (
	// starting is how long a service that was just started may take to show whether it runs: a program is slow to start on a
	// machine that does much else. One that fails shows it earlier.
	starting = 20 * time.Second
	// settle is for one that was started earlier: a restart takes restartSeconds alone.
	settle = (restartSeconds + 2) * time.Second
)

// run keeps the services up, and says which doesn't run.
func (p *pass) run(ctx context.Context, w wanted) error {
	var errs []error
	for _, u := range w.units {
		if err := p.s.o.Services.Ensure(ctx, u); err != nil {
			errs = append(errs, err)
			continue
		}
		st, err := p.came(ctx, u, 0, settle)
		if err != nil {
			errs = append(errs, err)
		} else if st.State == service.Failed {
			errs = append(errs, fmt.Errorf("service %s does not run: %s", strings.TrimPrefix(u.Name, unitPrefix), st.Message))
		}
	}
	return errors.Join(errs...)
}

// came waits for a service that is just starting, or starting again, until it runs as another process than the old one (0:
// any), has ended, or has failed again after the first look.
func (p *pass) came(ctx context.Context, u service.Unit, old int, patience time.Duration) (service.Status, error) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	first, err := p.s.o.Services.Status(ctx, u.Name)
	for st := first; ; st, err = p.s.o.Services.Status(ctx, u.Name) {
		runs := st.PID > 0 && st.PID != old
		failed := st.State == service.Failed && (st.Restarts > first.Restarts+1 || u.Restart == service.Never && st.Message != "")
		if err != nil || runs || failed || st.State == service.Ended {
			return st, err
		}
		select {
		case <-ctx.Done():
			return st, ctx.Err()
		case <-limit.C:
			return st, nil
		case <-tick.C:
		}
	}
}

// packages takes away those that this agent installed and no module wants.
func (p *pass) packages(ctx context.Context, want *sdwan.Document) {
	if len(p.j.Packages) == 0 {
		return
	}
	idle := slices.Clone(p.j.Packages)
	for _, m := range want.Modules {
		manifest, err := sdwan.ReadManifest(m.Manifest)
		if err != nil {
			return // what it wants is not known: nothing is taken away
		}
		idle = without(idle, manifest.Packages...)
	}
	if len(idle) == 0 {
		return
	}
	if p.s.o.Packages == nil {
		p.out.fail("", fmt.Errorf("remove the packages %s: this machine has no package manager any more", strings.Join(idle, ", ")))
		return
	}
	if err := p.s.o.Packages.Remove(ctx, idle); err != nil {
		p.out.fail("", fmt.Errorf("remove the packages %s: %w", strings.Join(idle, ", "), err))
		return
	}
	p.j.Packages = without(p.j.Packages, idle...)
	p.out.fail("", p.save())
}
