package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"powernode/agent/wireguard"
)

// deviceRunCommand is a userspace WireGuard device: the agent starts it where the kernel has none, and it outlives
// the agent. With --detach it starts itself anew in a session of its own and returns when the device is ready.
func deviceRunCommand() *cobra.Command {
	var name, log string
	var mtu int
	var detach, tellReady bool
	cmd := &cobra.Command{
		Use:    "device-run",
		Short:  "Be a userspace WireGuard device (started by the agent)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if detach {
				program, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find the agent's program: %w", err)
				}
				argv := []string{program, "device-run", "--name", name, "--mtu", strconv.Itoa(mtu), "--tell-ready"}
				return wireguard.Detach(cmd.Context(), argv, log)
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			d := wireguard.Device{Name: name, MTU: mtu, Log: zerolog.New(os.Stderr).With().Timestamp().Str("device", name).Logger()}
			if tellReady {
				d.Ready = wireguard.ReadyPipe()
			}
			return wireguard.RunDevice(ctx, d)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "interface name")
	f.IntVar(&mtu, "mtu", 1420, "MTU of the interface")
	f.BoolVar(&detach, "detach", false, "start in a session of its own and return when ready")
	f.BoolVar(&tellReady, "tell-ready", false, "say on descriptor 3 when ready")
	f.StringVar(&log, "log", "", "where a detached device writes its errors")
	_ = cmd.MarkFlagRequired("name")
	return cmd
}
