package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"powernode/agent/device"
)

func deviceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "device", Short: "Be a person's device on networks of the overlay"}
	var stateDir, configDir string
	join := &cobra.Command{
		Use:   "join URL",
		Short: "Redeem a bootstrap URL and write the WireGuard configuration",
		Long: "Redeem a bootstrap URL of system_sdwan_issue_user_device, whole, with the part after #. This machine's key is made once and\n" +
			"serves every further URL; a later URL rewrites the file, which then holds all networks of the device.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := device.Join(cmd.Context(), device.Options{StateDir: stateDir, ConfigDir: configDir}, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s; bring it up with: powernode-agent device up %s\n", path, path)
			return err
		},
	}
	up := &cobra.Command{
		Use:   "up FILE",
		Short: "Bring a WireGuard configuration up on this machine",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return device.Up(cmd.Context(), device.Options{StateDir: stateDir, Log: newLogger(cmd.ErrOrStderr())}, args[0])
		},
	}
	down := &cobra.Command{
		Use:   "down FILE",
		Short: "Take it down again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return device.Down(cmd.Context(), device.Options{StateDir: stateDir, Log: newLogger(cmd.ErrOrStderr())}, args[0])
		},
	}
	cmd.PersistentFlags().StringVar(&stateDir, "state-dir", defaultStateDir, "where this machine's device key is")
	join.Flags().StringVar(&configDir, "config-dir", "/etc/wireguard", "where the configuration is written")
	cmd.AddCommand(join, up, down)
	return cmd
}
