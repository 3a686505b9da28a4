package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/tools"
)

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Prove the record of changes",
	}
	var asJSON bool
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Walk the audit chain, and hold decisions, policies and human keys against it",
		Long: "Walk the audit chain, and hold every decision, policy and human key against it. Rows that do not fit are named, and the\n" +
			"exit code is 1. Signatures can't be made up; rows that need none, such as the end of an emergency stop, can be added, and\n" +
			"the last rows taken away, by whoever can write the database: against that only another user for powernode serve helps.",
		Args: cobra.NoArgs,
		RunE: withClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
			var proof governance.Proof
			if err := c.People(cmd.Context(), tools.PeopleVerify, nil, &proof); err != nil {
				return err
			}
			if asJSON {
				if err := printValue(cmd.OutOrStdout(), proof); err != nil {
					return err
				}
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "%d audit rows fit\n", proof.Rows)
				for _, f := range proof.Findings {
					fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %s\n", f.Table, governance.Plain(f.ID, 64), governance.Plain(f.Reason, 400))
				}
			}
			if len(proof.Findings) > 0 {
				return fmt.Errorf("the record does not fit: %s %s", proof.Findings[0].Table, governance.Plain(proof.Findings[0].ID, 64))
			}
			return nil
		}),
	}
	verify.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.AddCommand(verify)
	return cmd
}
