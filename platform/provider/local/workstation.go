package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"powernode/platform/provider/local/boot"
	"powernode/schema"
)

// deviceFolder is where powernode-agent device join writes, inside a workstation.
const deviceFolder = "/etc/wireguard"

// Workstation makes a machine that is no node, or takes the one of that name, joins it to the networks of the
// bootstrap URLs as a person's device, and brings that up.
func (p *Provider) Workstation(ctx context.Context, name string, urls ...string) (Entry, error) {
	rec, err := p.ensureWorkstation(ctx, name, urls)
	if err != nil {
		return Entry{}, err
	}
	if err := p.join(ctx, rec, urls); err != nil {
		return Entry{}, err
	}
	return Entry{ID: rec.ID, Name: rec.Name, Kind: rec.Kind, Status: p.status(rec), PID: rec.Init.PID, Addresses: rec.Addresses}, nil
}

func (p *Provider) ensureWorkstation(ctx context.Context, name string, urls []string) (record, error) {
	if !label.MatchString(name) {
		return record{}, &schema.Error{Code: schema.InvalidArguments, Message: fmt.Sprintf("a workstation's name is a DNS label of at most 63 characters, got %q", name)}
	}
	ports, err := portsOf(urls)
	if err != nil {
		return record{}, err
	}
	if err := requirePrivileges(); err != nil {
		return record{}, err
	}
	recs, err := p.records(ctx)
	if err != nil {
		return record{}, err
	}
	for _, rec := range recs {
		if rec.Kind != kindWorkstation && rec.Name == name {
			return record{}, &schema.Error{Code: schema.Conflict, Message: fmt.Sprintf("a node's machine is named %q", name)}
		}
	}
	if _, err := p.ensureInstallation(ctx, ports); err != nil {
		return record{}, err
	}
	rec, err := p.create(ctx, record{ID: "workstation-" + name, Kind: kindWorkstation, Name: name, Tags: map[string]string{}}, nil)
	if err != nil || rec.alive() {
		return rec, err
	}
	if err := p.Start(ctx, rec.ID); err != nil {
		return rec, err
	}
	return p.load(rec.ID)
}

// join redeems each URL inside the machine and brings the device up. A workstation that was joined before is brought up
// also without a URL.
func (p *Provider) join(ctx context.Context, rec record, urls []string) error {
	for i, url := range urls {
		if err := p.device(ctx, rec, "join", url); err != nil {
			return fmt.Errorf("join network %d of %d: %w", i+1, len(urls), err) // by number: a URL holds a token
		}
	}
	files, err := listInside(rec.Init.PID, deviceFolder, ".conf")
	if err != nil {
		return fmt.Errorf("list the device's files: %w", err)
	}
	if len(urls) > 0 && len(files) == 0 {
		return fmt.Errorf("join networks: nothing was written to %s", deviceFolder)
	}
	for _, file := range files {
		if err := p.device(ctx, rec, "up", file); err != nil {
			return fmt.Errorf("bring %s up: %w", file, err)
		}
	}
	return nil
}

func (p *Provider) device(ctx context.Context, rec record, args ...string) error {
	cmd, err := p.Command(ctx, rec.ID, append([]string{boot.AgentPath, "device"}, args...)...)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // the device's process may have kept the output
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}
