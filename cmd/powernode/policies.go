package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
)

func policiesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policies",
		Short: "See and set what calls of an action category need",
		Long: "See and set what calls of an action category need: auto_approve, notify_and_proceed, require_approval or block.\n" +
			"A policy of the account stands over the compiled-in default; the most specific scope wins. One of a cluster or network\n" +
			"speaks of the calls on what lies there: its machines, their nodes, the templates that aim at it. A call that touches\n" +
			"several of them needs the strictest of what each needs. A scope that no call of the category could fit is refused.",
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
		sub.Flags().StringVar((*string)(&scope.UserID), "user-id", "", "only for this person, by id or e-mail address")
		sub.Flags().StringVar((*string)(&scope.TokenID), "token-id", "", "only for this token")
		sub.Flags().StringVar((*string)(&scope.ClusterID), "cluster-id", "", "only for calls on this cluster, by id, name or slug")
		sub.Flags().StringVar((*string)(&scope.NetworkID), "network-id", "", "only for calls on this network, by id, name or slug")
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
	named := in.Scope
	if in.Scope, err = scopeIDs(ctx, c, in.Scope); err != nil {
		return err
	}
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
	if named != in.Scope {
		t.Say("The scope was given as %s", governance.Plain(compact(named), 200))
	}
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
		Verdict: in.Verdict, Scope: in.Scope, UserID: *state.UserID, Chain: statement.Chain}
	var set governance.PolicyView
	err = c.People(ctx, tools.PeopleSetPolicy, governance.PolicyInput{Policy: signed, Signature: governance.Sign(key, signed.Bytes())}, &set)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s (%s)\n", set.ActionCategory, set.Verdict, set.Source)
	return nil
}

// scopeIDs is a scope with the id of the cluster, network or person that it names otherwise: a policy is signed over ids.
func scopeIDs(ctx context.Context, c client, s governance.Scope) (governance.Scope, error) {
	var err error
	switch {
	case s.ClusterID != "":
		s.ClusterID, err = clusterID(ctx, c, s.ClusterID)
	case s.NetworkID != "":
		s.NetworkID, err = networkID(ctx, c, s.NetworkID)
	case strings.Contains(string(s.UserID), "@"):
		var people tools.UsersAnswer
		if err = c.People(ctx, tools.PeopleUsers, nil, &people); err != nil {
			return s, err
		}
		i := slices.IndexFunc(people.Users, func(u governance.PersonView) bool { return u.Email == string(s.UserID) && u.Note == nil })
		if i < 0 {
			return s, schema.Errorf(schema.NotFound, "the account has nobody with the e-mail address %s", governance.Quote(string(s.UserID)))
		}
		s.UserID = people.Users[i].ID
	}
	return s, err
}

// clusterID is the id of the cluster that a person names. What an id names may be gone: its policy can still be taken back.
func clusterID(ctx context.Context, c client, ref store.ClusterID) (store.ClusterID, error) {
	if uuid.Validate(string(ref)) == nil {
		return ref, nil
	}
	var answer struct {
		Cluster struct {
			ID store.ClusterID `json:"id"`
		} `json:"cluster"`
	}
	err := read(ctx, c, "kubernetes_get_cluster", map[string]any{"cluster_id": ref}, &answer)
	return answer.Cluster.ID, err
}

// networkID is the same for a network, which verbs know by its id alone. A name that is another's slug names none of both: what a
// person signs must not turn on what somebody called a network.
func networkID(ctx context.Context, c client, ref store.NetworkID) (store.NetworkID, error) {
	if uuid.Validate(string(ref)) == nil {
		return ref, nil
	}
	arguments := map[string]any{"limit": 500}
	var found []store.NetworkID
	for {
		var page struct {
			Networks []struct {
				ID   store.NetworkID `json:"id"`
				Name string          `json:"name"`
				Slug string          `json:"slug"`
			} `json:"networks"`
			Next *string `json:"next_cursor"`
		}
		if err := read(ctx, c, "system_sdwan_list_networks", arguments, &page); err != nil {
			return "", err
		}
		for _, n := range page.Networks {
			if n.Name == string(ref) || n.Slug == string(ref) {
				found = append(found, n.ID)
			}
		}
		switch {
		case page.Next != nil:
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			return "", schema.Errorf(schema.InvalidArguments, "%s is the name of one network and the slug of another: give the id", governance.Quote(string(ref)))
		default:
			return "", schema.Errorf(schema.NotFound, "the account has no network of the name %s", governance.Quote(string(ref)))
		}
		arguments["cursor"] = *page.Next
	}
}

// read calls a verb that reads.
func read(ctx context.Context, c client, verb string, arguments map[string]any, answer any) error {
	raw, err := json.Marshal(arguments)
	if err != nil {
		return fmt.Errorf("encode the arguments: %w", err)
	}
	result, _, err := c.Call(ctx, verb, raw)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(result, answer); err != nil {
		return fmt.Errorf("read the answer of %s: %w", verb, err)
	}
	return nil
}

func scopeText(s governance.Scope) string {
	if (s == governance.Scope{}) {
		return "for every call"
	}
	return "for calls of " + compact(s)
}
