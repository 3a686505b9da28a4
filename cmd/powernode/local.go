package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"powernode/platform/provider/local"
)

// localCommand works on the machines of the provider local, by their files: it needs root, and no running platform.
func localCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "local",
		Short: "Work on machines that the provider local made on this host",
	}
	cmd.AddCommand(localExecCommand(), localListCommand(), localDownCommand(), localWorkstationCommand())
	return cmd
}

func localExecCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "exec INSTANCE -- COMMAND [ARGUMENT...]",
		Short:   "Run a command inside a machine or workstation",
		Long:    "Run a command inside a machine, in all of its namespaces. INSTANCE is an instance's id or name, or a workstation's name.\nThis process becomes the command: input, output, signals and exit code are the command's own.",
		Example: "  powernode local exec a-server-1 -- ip -6 addr",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := localProvider(cmd)
			if err != nil {
				return err
			}
			return p.Enter(cmd.Context(), args[0], args[1:]...)
		},
	}
}

func localListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List machines and workstations on this host",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := localProvider(cmd)
			if err != nil {
				return err
			}
			entries, err := p.Entries(cmd.Context())
			if err != nil {
				return err
			}
			return printEntries(cmd.OutOrStdout(), entries)
		},
	}
}

func printEntries(w io.Writer, entries []local.Entry) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tKIND\tSTATUS\tPID\tADDRESSES\tINSTANCE")
	for _, e := range entries {
		var addresses []string
		for _, a := range e.Addresses {
			addresses = append(addresses, a.String())
		}
		pid, instance := "-", e.InstanceID
		if e.PID != 0 {
			pid = fmt.Sprint(e.PID)
		}
		if instance == "" {
			instance = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, e.Kind, e.Status, pid, strings.Join(addresses, ","), instance)
	}
	return table.Flush()
}

func localDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove every machine, workstation, link, rule and control group of this state directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := localProvider(cmd)
			if err != nil {
				return err
			}
			return p.Down(cmd.Context())
		},
	}
}

func localWorkstationCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "workstation NAME URL...",
		Short:   "Make a machine that is no node, join it to networks as your device, and bring it up",
		Long:    "Make a machine that is no node, run powernode-agent device join in it for each bootstrap URL, and bring the file up.\nFor a workstation that is there the URLs are joined as well; without a URL it is started and brought up again.",
		Example: "  powernode local workstation desk 'https://…/bootstrap/…#…'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := localProvider(cmd)
			if err != nil {
				return err
			}
			entry, err := p.Workstation(cmd.Context(), args[0], args[1:]...)
			if err != nil {
				return err
			}
			return printEntries(cmd.OutOrStdout(), []local.Entry{entry})
		},
	}
}

func localProvider(cmd *cobra.Command) (*local.Provider, error) {
	dir, err := namedStateDir(cmd)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(string(dir)); err != nil { // machines may outlive the store
		return nil, fmt.Errorf("there are no machines of %s: %w", dir, err)
	}
	agent, err := agentBinary()
	if err != nil {
		return nil, err
	}
	log := zerolog.New(zerolog.ConsoleWriter{Out: cmd.ErrOrStderr()}).Level(zerolog.WarnLevel).With().Timestamp().Logger()
	return local.New(local.Options{StateDir: string(dir), AgentBinary: agent, Log: log}), nil
}

// agentBinary is powernode-agent beside this program, else on the path. That there is none shows when a machine starts.
func agentBinary() (string, error) {
	const name = "powernode-agent"
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	if found, err := exec.LookPath(name); err == nil {
		return found, nil
	}
	return beside, nil
}
