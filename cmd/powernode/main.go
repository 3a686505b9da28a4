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

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program but for the process; it answers the exit code (powernode help exit-codes).
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var told exitCode
	if err != nil && !errors.As(err, &told) {
		fmt.Fprintln(stderr, "powernode:", err)
	}
	return exitOf(err)
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
	root.AddCommand(
		initCommand(),
		serveCommand(),
		mcpCommand(),
		callCommand(),
		toolsCommand(),
		approvalsCommand(),
		policiesCommand(),
		auditCommand(),
		accountCommand(),
		userCommand(),
		tokenCommand(),
		artifactCommand(),
		localCommand(),
		stopCommand(),
		openapiCommand(),
		versionCommand(),
		exitCodesTopic(),
	)
	root.SetFlagErrorFunc(wrongFlag)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	strict(root)
	strictHelp(root)
	completed(root, flagValues(), argumentValues())
	return root
}
