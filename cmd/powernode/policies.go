package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/tools"
)

func policiesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policies",
		Short: "See and set what calls of an action category need",
		Long: "See and set what calls of an action category need: auto_approve, notify_and_proceed, require_approval or block.\n" +
			"A policy of the account stands over the compiled-in default; the most specific scope wins.",
	}
	var scope governance.Scope
	set := &cobra.Command{
		Use:     "set CATEGORY VERDICT",
		Short:   "Set a policy",
		Example: "  powernode policies set sdwan.firewall_rule_create require_approval",
		Args:    cobra.ExactArgs(2),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			return setPolicy(cmd, c, dir, tools.PreparePolicyRequest{ActionCategory: args[0], Verdict: args[1], Scope: scope})
		}),
	}
	unset := &cobra.Command{
		Use:   "unset CATEGORY",
		Short: "Take a policy back: the default stands again",
		Args:  cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			return setPolicy(cmd, c, dir, tools.PreparePolicyRequest{ActionCategory: args[0], Verdict: governance.Unset, Scope: scope})
		}),
	}
	for _, sub := range []*cobra.Command{set, unset} {
		sub.Flags().StringVar(&scope.Role, "role", "", "only for callers of this role")
		sub.Flags().StringVar((*string)(&scope.UserID), "user-id", "", "only for this person")
		sub.Flags().StringVar((*string)(&scope.TokenID), "token-id", "", "only for this token")
		sub.Flags().StringVar((*string)(&scope.ClusterID), "cluster-id", "", "only for calls on this cluster")
		sub.Flags().StringVar((*string)(&scope.NetworkID), "network-id", "", "only for calls on this network")
		sub.MarkFlagsMutuallyExclusive("role", "user-id", "token-id", "cluster-id", "network-id")
	}
	declareSigner(cmd)
	cmd.AddCommand(policiesListCommand(), set, unset)
	return cmd
}

func policiesListCommand() *cobra.Command {
	return listCommand("List every action category with what applies", tools.PeoplePolicies,
		func(w io.Writer, a tools.PoliciesAnswer) error { return printPolicies(w, a.Policies) })
}

func printPolicies(w io.Writer, policies []governance.PolicyView) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CATEGORY\tVERDICT\tSOURCE\tSCOPE\tNOTE")
	for _, p := range policies {
		scope, note := "", ""
		if (p.Scope != governance.Scope{}) {
			scope = compact(p.Scope)
		}
		if p.Note != nil {
			note = *p.Note
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", governance.Plain(p.ActionCategory, 64), governance.Plain(p.Verdict, 32), p.Source,
			governance.Plain(scope, 100), note)
	}
	return table.Flush()
}

// setPolicy asks on the terminal, signs with the human key, and sets.
func setPolicy(cmd *cobra.Command, c client, dir stateDir, in tools.PreparePolicyRequest) (err error) {
	ctx := cmd.Context()
	var statement governance.PolicyStatement
	if err := c.People(ctx, tools.PeoplePreparePolicy, in, &statement); err != nil {
		return err
	}
	state, err := signerOf(cmd, c, dir)
	if err != nil {
		return err
	}
	t, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	t.Say("Policy of %s: %s %s", in.ActionCategory, in.Verdict, scopeText(in.Scope))
	yes, err := t.Confirm("Set it?")
	if err != nil {
		return err
	}
	if !yes {
		return errors.New("nothing was changed")
	}
	key, err := openKey(t, dir, state, "Passphrase: ")
	if err != nil {
		return err
	}
	// What is signed is what was asked for, not what the control plane says that it was.
	signed := governance.PolicyStatement{AccountID: state.AccountID, PolicyID: statement.PolicyID, ActionCategory: in.ActionCategory,
		Verdict: in.Verdict, Scope: in.Scope, UserID: *state.UserID}
	var set governance.PolicyView
	err = c.People(ctx, tools.PeopleSetPolicy, governance.PolicyInput{Policy: signed, Signature: governance.Sign(key, signed.Bytes())}, &set)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s (%s)\n", set.ActionCategory, set.Verdict, set.Source)
	return nil
}

func scopeText(s governance.Scope) string {
	if (s == governance.Scope{}) {
		return "for every call"
	}
	return "for calls of " + compact(s)
}
