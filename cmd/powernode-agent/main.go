// Command powernode-agent makes a machine what the platform declares: WireGuard overlay, firewall, virtual IPs, K3s.
// One file a subcommand; those that machines start themselves are hidden.
//
// It is not the platform (cmd/powernode) and holds no rule: it wires package agent with its subsystems.
//
// Invariants: secrets come by file or descriptor, never as an argument; a failing command says on stderr what to do
// and exits with 1.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
)

// version is what reports say of the agent.
const version = "0.1.0"

const (
	defaultStateDir = "/var/lib/powernode-agent"
	defaultRunDir   = "/run/powernode-agent"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "powernode-agent:", err)
		return 1
	}
	return 0
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "powernode-agent",
		Short:         "The node agent of Powernode",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(runCommand(), installCommand(), enrollCommand(), deviceCommand(), versionCommand(),
		superviseCommand(), waitAddressCommand(), deviceRunCommand(), initCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the agent's version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}

// untilSignal ends with SIGTERM or SIGINT.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
}

func newLogger(w io.Writer) zerolog.Logger { return zerolog.New(w).With().Timestamp().Logger() }
