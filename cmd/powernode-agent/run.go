package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/agent/firewall"
	"powernode/agent/install"
	"powernode/agent/k3s"
	"powernode/agent/module"
	"powernode/agent/probe"
	"powernode/agent/service"
	"powernode/agent/vip"
	"powernode/agent/wireguard"
)

func runCommand() *cobra.Command {
	o := agent.Options{Version: version}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent of this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The machine's memory is for its work: collect earlier than Go's default does.
			debug.SetGCPercent(50)
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			o.Log = newLogger(cmd.ErrOrStderr())
			machine := install.Options{StateDir: o.StateDir, RunDir: o.RunDir, Log: o.Log}
			if install.Left(o.StateDir) {
				return install.Remove(context.WithoutCancel(ctx), machine)
			}
			err := runAgent(ctx, o)
			if errors.Is(err, agent.ErrLeft) {
				o.Log.Info().Msg("this machine has left the platform: the agent removes itself")
				return install.Remove(context.WithoutCancel(ctx), machine)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.StateDir, "state-dir", defaultStateDir, "where the agent keeps identity, keys and the last document")
	f.StringVar(&o.RunDir, "run-dir", defaultRunDir, "where it keeps what ends with the machine's uptime")
	f.StringVar(&o.Enrollment, "enrollment", "", "file (0600) with the enrolment of a new machine; removed after use")
	return cmd
}

// runAgent runs the agent with all that it can make of this machine.
func runAgent(ctx context.Context, o agent.Options) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the agent's program: %w", err)
	}
	if o.Disturbed, err = wireguard.Watch(ctx, o.Log); err != nil {
		o.Log.Warn().Err(err).Msg("changes by others are seen at the next look only")
	}
	o.Disturbs = []string{"wireguard", "firewall", "vip"}
	o.Subsystems = func(c *agent.Connection) []agent.Subsystem {
		return subsystems(parts{stateDir: o.StateDir, program: program, platform: c, log: o.Log})
	}
	return agent.Run(ctx, o)
}

// parts are what the subsystems are made of.
type parts struct {
	stateDir, program string
	platform          *agent.Connection
	log               zerolog.Logger
}

// subsystems are all that this agent can make of a machine.
func subsystems(p parts) []agent.Subsystem {
	store := artifact.NewStore(filepath.Join(p.stateDir, "modules"), func() (artifact.Platform, error) { return p.platform.Client() })
	services := service.New(service.Options{StateDir: p.stateDir, AgentBinary: p.program, Log: p.log})
	cluster := k3s.New(k3s.Options{
		StateDir: p.stateDir, BootID: p.platform.BootID(),
		Platform:  func() (k3s.Platform, error) { return p.platform.Client() },
		Store:     artifact.NewStore(filepath.Join(p.stateDir, "k3s-artifact"), func() (artifact.Platform, error) { return p.platform.Client() }),
		Services:  services,
		LogToFile: !service.HasSystemd(), CgroupV1: agent.CgroupVersion() == 1, Log: p.log,
	})
	return []agent.Subsystem{
		wireguard.New(wireguard.Options{StateDir: p.stateDir, AgentBinary: p.program, Log: p.log}),
		firewall.New(firewall.Options{Log: p.log}),
		vip.New(vip.Options{StateDir: p.stateDir, Log: p.log}),
		probe.New(probe.Options{Log: p.log}),
		module.New(module.Options{StateDir: p.stateDir, Root: "/", Store: store, Services: services, Packages: module.FindPackages(),
			Elsewhere: cluster.InPlace, LogToFile: !service.HasSystemd(), Log: p.log}),
		cluster,
	}
}
