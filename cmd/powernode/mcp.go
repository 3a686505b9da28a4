package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"powernode/tools/mcp"
)

func mcpCommand() *cobra.Command {
	var toolsets, tokenFile string
	var readOnly bool
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve an MCP client over stdin and stdout",
		Long: "Serve an MCP client over stdin and stdout. It is a bridge to the control plane of the state directory, and starts a\n" +
			"detached one where none runs (powernode stop ends it). At a terminal it says how to connect an assistant.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := mcp.ParseChoice(toolsets, readOnly); err != nil {
				return usagef("flag --toolsets: %w", err)
			}
			if in, ok := cmd.InOrStdin().(*os.File); ok && term.IsTerminal(int(in.Fd())) {
				dir, err := namedStateDir(cmd)
				if err != nil {
					return err
				}
				return howToConnect(cmd.OutOrStdout(), cmd, dir)
			}
			dir, err := makingStateDir(cmd)
			if err != nil {
				return err
			}
			token, err := credentialFrom(tokenFile)
			if err != nil {
				return err
			}
			query := url.Values{"toolsets": {toolsets}, "read_only": {strconv.FormatBool(readOnly)}}
			b := newBridge(dir, query, token, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			err = b.run(cmd.Context())
			if errors.Is(err, errClientGone) {
				return nil
			}
			return err
		},
	}
	cmd.Flags().StringVar(&toolsets, "toolsets", "", "list these toolsets, with commas between, or all (default: what the K3s workflow needs)")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "list tools that change nothing, and refuse the others")
	cmd.Flags().StringVar(&tokenFile, tokenFileFlag, "",
		"speak with the token in this file, in place of the account's agent (environment: "+tokenVariable+")")
	return cmd
}

const connectText = `This is Powernode's MCP server. It speaks to an assistant, not to a terminal: nothing waits here.

Claude Code:
  claude mcp add powernode -- %[1]s

Claude Desktop (claude_desktop_config.json):
  {"mcpServers": {"powernode": %[2]s}}

VS Code (.vscode/mcp.json):
  {"servers": {"powernode": %[3]s}}

State: %[4]s
A person approves what is dangerous: run powernode init once, in a terminal, and powernode approvals when something waits.
`

// howToConnect says what an assistant needs to be told, in place of waiting in silence for a protocol.
func howToConnect(w io.Writer, cmd *cobra.Command, dir stateDir) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"mcp"}
	if cmd.Flags().Changed(stateDirFlag) {
		args = append(args, "--"+stateDirFlag, string(dir))
	}
	type server struct {
		Type    string   `json:"type,omitempty"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	desktop, err := json.Marshal(server{Command: self, Args: args})
	if err != nil {
		return err
	}
	code, err := json.Marshal(server{Type: "stdio", Command: self, Args: args})
	if err != nil {
		return err
	}
	words := []string{shellWord(self)}
	for _, a := range args {
		words = append(words, shellWord(a))
	}
	_, err = fmt.Fprintf(w, connectText, strings.Join(words, " "), desktop, code, dir)
	return err
}

// shellWord quotes a word for a shell where it needs that.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
