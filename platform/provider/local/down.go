package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"powernode/platform/provider"
	"powernode/platform/provider/local/cgroup"
)

// Down removes every machine and workstation of the installation, its bridge, rules and control groups. What it is
// called stays on record, so that the platform's address for agents is the same when machines are made again.
func (p *Provider) Down(ctx context.Context) error {
	inst, err := p.loadInstallation()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever made
	}
	if err != nil {
		return err
	}
	if err := requirePrivileges(); err != nil {
		return err
	}
	ids, err := p.ids()
	if err != nil {
		return err
	}
	var failed []error
	for _, id := range ids {
		if err := p.Terminate(ctx, id); err != nil && !errors.Is(err, provider.ErrNotFound) {
			failed = append(failed, fmt.Errorf("remove %s: %w", id, err))
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	return p.removeInstallation(ctx, inst)
}

func (p *Provider) removeInstallation(ctx context.Context, inst installation) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := cgroup.Remove(ctx, hierarchies, inst.group()); err != nil {
		return err
	}
	if err := deleteLink(inst.bridge()); err != nil {
		return err
	}
	if err := inst.removeRules(); err != nil { // last: no machine is ever on a bridge without them
		return err
	}
	if err := os.Remove(p.machinesDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove folder of machines: %w", err)
	}
	return nil
}
