package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/store"
	"powernode/tools"
)

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Prove the record of changes",
	}
	var asJSON bool
	var noted string
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Walk the audit chain, and hold decisions, policies and human keys against it",
		Long: "Walk the audit chain, and hold every decision, policy, human key and end of an emergency stop against it. Rows that do not\n" +
			"fit are named, and the exit code is 1. Signatures can't be made up, and each is over the record before it: rows that were\n" +
			"taken away before the last one are found, and so are those that were taken away while this control plane ran.\n\n" +
			"Whoever can write the database while no control plane runs can still take away the rows after the last signature, add\n" +
			"such as need none, or put back the whole database as it was. Note the head that is printed, where nobody else writes:\n" +
			"--head says later whether the record still goes on from there. Against the rest only another user for powernode serve helps.",
		Example: "  powernode audit verify --head 214:0b7c…",
		Args:    cobra.NoArgs,
		RunE: withClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
			var in tools.VerifyRequest
			if noted != "" {
				head, err := store.ParseHead(noted)
				if err != nil {
					return fmt.Errorf("read --head: %w", err)
				}
				in.Head = &head
			}
			var proof governance.Proof
			if err := c.People(cmd.Context(), tools.PeopleVerify, in, &proof); err != nil {
				return err
			}
			if asJSON {
				if err := printValue(cmd.OutOrStdout(), proof); err != nil {
					return err
				}
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "%d audit rows fit\nhead %s\n", proof.Rows, proof.Head)
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
	verify.Flags().StringVar(&noted, "head", "", "ROWS:HASH that an earlier audit verify printed: the record must go on from there")
	cmd.AddCommand(verify)
	return cmd
}
