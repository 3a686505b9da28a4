package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"powernode/agent/service"
)

// superviseCommand runs a service where there is no systemd; the agent starts it, and it outlives the agent.
func superviseCommand() *cobra.Command {
	var name, state string
	cmd := &cobra.Command{
		Use:    "supervise",
		Short:  "Run a service of this machine (started by the agent)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return service.Supervise(cmd.Context(), state, name) },
	}
	cmd.Flags().StringVar(&name, "name", "", "the service")
	cmd.Flags().StringVar(&state, "state", defaultStateDir, "the agent's state directory")
	return cmd
}

// waitAddressCommand is what a unit of systemd runs before a service that needs an address of the overlay.
func waitAddressCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "wait-address ADDRESS",
		Short:  "Wait until this machine has an address (started by systemd)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := netip.ParseAddr(args[0])
			if err != nil {
				return fmt.Errorf("no address: %w", err)
			}
			return service.AwaitAddress(cmd.Context(), a)
		},
	}
}
