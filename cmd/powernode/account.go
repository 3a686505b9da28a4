package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/tools"
)

func accountCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "account",
		Short: "See the account",
	}
	var asJSON bool
	show := &cobra.Command{
		Use:   "show",
		Short: "Show the account: its networks' prefix, who can sign, and whether an emergency stop is on",
		Args:  cobra.NoArgs,
		RunE: withClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
			var a tools.AccountAnswer
			if err := c.People(cmd.Context(), tools.PeopleAccount, nil, &a); err != nil {
				return err
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), a)
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "Account %s (%s)\n", governance.Quote(a.Name), a.ID)
			fmt.Fprintf(w, "  made at   %s\n  networks  %s\n  people    %d\n  tokens    %d valid\n", a.CreatedAt, a.Prefix, a.People, a.Tokens)
			for _, email := range a.KeyHolder {
				fmt.Fprintf(w, "  signs     %s\n", governance.Plain(email, 200))
			}
			if len(a.KeyHolder) == 0 {
				fmt.Fprintln(w, "  signs     nobody: no human key yet: run powernode init")
			}
			if a.Stopped != nil {
				fmt.Fprintf(w, "  emergency stop since %s\n", a.Stopped)
			}
			return nil
		}),
	}
	show.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.AddCommand(show)
	return cmd
}
