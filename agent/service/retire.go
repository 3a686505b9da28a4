package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
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
	if err := awaitEnding(ctx, unit); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(systemdUnits, unit)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the unit %s: %w", name, err)
	}
	_, err := runSystemctl(ctx, "daemon-reload")
	return err
}

// endingLimit is how long systemd may take to begin what it was told; at a boot other units come first.
const endingLimit = time.Minute

// awaitEnding waits until systemd has begun to end a service. It does so after it has answered, and if the unit was gone by then
// it would end it by the rules of a unit it does not know.
func awaitEnding(ctx context.Context, unit string) error {
	return await(ctx, endingLimit, "systemd to begin the end of "+unit, func() (bool, error) {
		state, err := runSystemctl(ctx, "show", "--property=ActiveState", "--value", unit)
		return err == nil && !slices.Contains([]string{"active", "activating", "reloading"}, strings.TrimSpace(state)), err
	})
}
