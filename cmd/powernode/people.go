package main

import (
	"io"

	"github.com/spf13/cobra"
)

// listCommand makes a command that lists what people's surface answers to a request: as a table, or as JSON.
func listCommand[A any](short, request string, table func(w io.Writer, answer A) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: short,
		Args:  cobra.NoArgs,
		RunE: withClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
			var answer A
			if err := c.People(cmd.Context(), request, nil, &answer); err != nil {
				return err
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), answer)
			}
			return table(cmd.OutOrStdout(), answer)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}
