// Command powernode is the control plane and the operator's command line.
//
// It holds no rule of the domain: it opens the state directory, binds listeners to the call path, and speaks to a
// running control plane over its local socket.
//
// Invariants: stdout of powernode mcp carries the protocol alone; the state directory is 0700, its files 0600; a command
// exits 0 only when what it was asked for is done.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitCode is an error that says how the process ends and has been told already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run is the whole program but for the process: 0 is success, 1 a failure that was said on stderr.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var told exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &told):
		return int(told)
	}
	fmt.Fprintln(stderr, "powernode:", err)
	return 1
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "powernode",
		Short: "Several isolated K3s clusters, operated by an assistant and decided by you",
		Long: "Powernode is a control plane that an AI assistant operates through MCP. Start with powernode init, then connect an\n" +
			"assistant to powernode mcp. Machines come from powernode's own local provider, or are yours.",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().String(stateDirFlag, defaultStateDir(), "folder of the control plane's state")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		initCommand(),
		serveCommand(),
		mcpCommand(),
		callCommand(),
		toolsCommand(),
		approvalsCommand(),
		policiesCommand(),
		auditCommand(),
		artifactCommand(),
		localCommand(),
		stopCommand(),
	)
	return root
}

// version is the module's version and the commit that it was built from, as far as the build knows them.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return v + " " + s.Value[:12]
		}
	}
	return v
}
