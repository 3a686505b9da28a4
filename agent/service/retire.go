package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// AgentName is the agent's own service.
const AgentName = "powernode-agent"

const systemdUnits = "/etc/systemd/system"

// Installed says whether systemd knows a service of ours by a unit file.
func Installed(name string) bool {
	_, err := os.Stat(filepath.Join(systemdUnits, name+".service"))
	return err == nil
}

// Halt ends a service's main process and waits for it; the service stays known, and is started again at the next boot.
func Halt(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	_, err := runSystemctl(ctx, "stop", name+".service")
	return err
}

// Retire takes away the service that the caller itself is. systemd is told to end it first, which the caller has to ignore
// until Retire is back (SIGTERM is the signal) and then does by itself: once the unit is gone, systemd would kill whatever
// the service has started, systemctl too.
func Retire(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	unit := name + ".service"
	if _, err := runSystemctl(ctx, "disable", unit); err != nil {
		return err
	}
	if _, err := runSystemctl(ctx, "stop", "--no-block", unit); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(systemdUnits, unit)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the unit %s: %w", name, err)
	}
	_, err := runSystemctl(ctx, "daemon-reload")
	return err
}
