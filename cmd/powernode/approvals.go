package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
	"powernode/tools"
)

func approvalsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "See and decide the calls that wait for a person",
		Long: "See and decide the calls that wait for a person. An approved call runs at once, as whoever asked for it. One that could not\n" +
			"be done, or that nothing could come of, ends the command as the call itself would end (powernode help exit-codes); where\n" +
			"nothing could come of it, the passphrase is not asked for.",
	}
	declareSigner(cmd)
	cmd.AddCommand(approvalsListCommand(), approvalsShowCommand(),
		decideCommand(governance.Approve, "Approve a parked call: it runs at once, as whoever asked for it"),
		decideCommand(governance.Reject, "Reject a parked call: it never runs"))
	return cmd
}

func approvalsListCommand() *cobra.Command {
	var status string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List parked calls",
		Args:  cobra.NoArgs,
		RunE: withClient(func(cmd *cobra.Command, _ []string, c client, _ stateDir) error {
			var answer tools.OperationsAnswer
			if status == "all" {
				status = ""
			}
			if err := c.People(cmd.Context(), tools.PeopleOperations, tools.OperationsRequest{Status: status}, &answer); err != nil {
				return err
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), answer)
			}
			return printOperations(cmd.OutOrStdout(), answer.Operations)
		}),
	}
	cmd.Flags().StringVar(&status, "status", governance.Pending, "only calls in this status; all: every one")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func printOperations(w io.Writer, operations []governance.OperationView) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATUS\tVERB\tCATEGORY\tASKED BY\tEXPIRES")
	for _, o := range operations {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", governance.Plain(string(o.ID), 64), governance.Plain(o.Status, 32), governance.Plain(o.Verb, 64), governance.Plain(o.ActionCategory, 64),
			callerName(o.RequestedBy), o.ExpiresAt)
	}
	return table.Flush()
}

func callerName(by store.Object) string {
	kind, _ := by["kind"].(string)
	id, _ := by["id"].(string)
	if kind == governance.KindPlatform {
		return "the platform itself"
	}
	return governance.Plain(kind, 20) + " " + governance.Plain(strings.TrimPrefix(id, kind+":"), 64)
}

// whoseWords introduces the words beside a call.
func whoseWords(by store.Object) string {
	switch by["kind"] {
	case governance.KindPlatform:
		return "What it answers:"
	case governance.KindPerson:
		return "The requester's own words:"
	}
	return "The assistant's own words:"
}

func approvalsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a parked call: what it would do, and who asked for it",
		Args:  cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, _ stateDir) error {
			var answer tools.OperationAnswer
			if err := c.People(cmd.Context(), tools.PeopleOperation, tools.OperationRequest{ID: args[0]}, &answer); err != nil {
				return err
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), answer)
			}
			_, err := io.WriteString(cmd.OutOrStdout(), summary(answer))
			return err
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// summary is an operation for the person who decides it: the platform's own words first, then what an assistant wrote,
// quoted.
func summary(a tools.OperationAnswer) string {
	var b strings.Builder
	o := a.Operation
	fmt.Fprintf(&b, "Operation %s: %s\n", governance.Plain(string(o.ID), 64), governance.Plain(o.Status, 32))
	fmt.Fprintf(&b, "  call      %s (%s)\n", governance.Plain(o.Verb, 64), governance.Plain(o.ActionCategory, 64))
	fmt.Fprintf(&b, "  asked by  %s\n", callerName(o.RequestedBy))
	fmt.Fprintf(&b, "  asked at  %s, expires at %s\n", o.CreatedAt, o.ExpiresAt)
	fmt.Fprintf(&b, "  plan      %s\n", governance.Plain(o.PlanDigest, 80))
	fmt.Fprintf(&b, "What it would do, by the platform's own plan:\n")
	switch {
	case a.Failed != nil && (o.Status == governance.Pending || o.Status == governance.Stale):
		fmt.Fprintf(&b, "  it would be refused as things are: %s\n", governance.Plain(a.Failed.Message, 400))
	case len(a.Effects) == 0:
		b.WriteString("  nothing\n")
	}
	for _, e := range a.Effects {
		fmt.Fprintf(&b, "  %s\n", effectLine(e))
	}
	for _, r := range a.Releases {
		fmt.Fprintf(&b, "What machines would get with %s, made by the %s:\n  artefacts %s\n  manifest %s\n", governance.Quote(r.Module+" "+r.Version),
			governance.Plain(r.MadeBy, 20), governance.Plain(compact(r.Artifacts), 4000), governance.Plain(compact(r.Manifest), 16000))
	}
	for _, what := range a.Irreversible {
		fmt.Fprintf(&b, "  can't be taken back: %s\n", governance.Plain(what, 256))
	}
	fmt.Fprintf(&b, "Arguments: %s\n", governance.Plain(compact(brief(o.Arguments)), 8000))
	if o.Description != nil {
		fmt.Fprintf(&b, "%s %s\n", whoseWords(o.RequestedBy), governance.Quote(*o.Description))
	}
	if o.DecidedBy != nil {
		fmt.Fprintf(&b, "Decided by %s\n", governance.Plain(*o.DecidedBy, 64))
	}
	if o.Comment != nil {
		fmt.Fprintf(&b, "Comment: %s\n", governance.Quote(*o.Comment))
	}
	if o.Error != nil {
		fmt.Fprintf(&b, "Error: %s\n", governance.Plain(compact(o.Error), 1000))
	}
	return b.String()
}

func effectLine(e governance.Effect) string {
	line := e.Action + " " + e.ResourceType
	switch {
	case e.Name != nil:
		line += " " + governance.Quote(*e.Name)
	case e.ID != nil:
		line += " " + *e.ID
	default:
		line += " (new)"
	}
	var changes []string
	for _, key := range slices.Sorted(maps.Keys(e.After)) {
		if before, there := e.Before[key]; there {
			changes = append(changes, key+" "+compact(brief(before))+" → "+compact(brief(e.After[key])))
		} else if key != "name" {
			changes = append(changes, key+" "+compact(brief(e.After[key])))
		}
	}
	if len(changes) > 0 {
		line += ": " + strings.Join(changes, ", ")
	}
	return governance.Plain(line, 8000)
}

const briefLength = 120

// brief is a value with each of its texts cut short by itself: a long one must not push others off what a person reads.
func brief(v any) any {
	switch v := v.(type) {
	case string:
		if n := utf8.RuneCountInString(v); n > briefLength {
			return fmt.Sprintf("%s… (%d characters)", string([]rune(v)[:briefLength]), n)
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = brief(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = brief(v[i])
		}
		return out
	}
	return v
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return string(b)
}

func decideCommand(decision, short string) *cobra.Command {
	var comment string
	cmd := &cobra.Command{
		Use:   decision + " ID",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			return decide(cmd, c, dir, args[0], decision, comment)
		}),
	}
	cmd.Flags().StringVar(&comment, "comment", "", "why, for the record")
	return cmd
}

// decide shows the operation on the terminal, asks there, signs with the human key, and tells what came of it. What no approval
// can bring about is told at once.
func decide(cmd *cobra.Command, c client, dir stateDir, id, decision, comment string) (err error) {
	ctx := cmd.Context()
	state, noSigner := signerOf(cmd, c, dir)
	request := tools.OperationRequest{ID: id}
	if decision == governance.Approve && noSigner == nil {
		request.By = *state.UserID
	}
	var answer tools.OperationAnswer
	if err := c.People(ctx, tools.PeopleOperation, request, &answer); err != nil {
		return err
	}
	status := answer.Operation.Status
	switch {
	case decision == governance.Approve && answer.Failed != nil && (status == governance.Pending || status == governance.Stale):
		if _, err := io.WriteString(cmd.OutOrStdout(), summary(answer)); err != nil {
			return fmt.Errorf("show the operation: %w", err)
		}
		return cannotApprove(answer.Failed)
	case status != governance.Pending:
		return schema.Errorf(schema.Conflict, "the operation is %s", governance.Plain(status, 32))
	case noSigner != nil:
		return noSigner
	}
	d, err := signDecision(dir, state, answer, decision, comment)
	if err != nil {
		return err
	}
	if err := c.People(ctx, tools.PeopleDecide, d, &answer); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Operation %s: %s\n", answer.Operation.ID, answer.Operation.Status)
	if answer.Failed != nil {
		return schema.Errorf(answer.Failed.Code, "it was approved and could not be done: %s", governance.Plain(answer.Failed.Message, 1000))
	}
	return nil
}

func cannotApprove(failed *schema.Error) error {
	return schema.Errorf(failed.Code, "it can't be approved: %s", governance.Plain(failed.Message, 1000))
}

func signDecision(dir stateDir, state tools.KeyState, shown tools.OperationAnswer, decision, comment string) (d governance.Decision, err error) {
	if shown.Statement == nil {
		return d, errNoHumanKey
	}
	t, err := openTerminal()
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for _, line := range strings.Split(strings.TrimRight(summary(shown), "\n"), "\n") {
		t.Say("%s", line)
	}
	question := strings.ToUpper(decision[:1]) + decision[1:] + "?"
	yes, err := t.Confirm(question)
	if err != nil {
		return d, err
	}
	if !yes {
		return d, errors.New("nothing was decided")
	}
	key, err := openKey(t, dir, state, "Passphrase: ")
	if err != nil {
		return d, err
	}
	statement := *shown.Statement
	if statement.OperationID != shown.Operation.ID || statement.PlanDigest != shown.Operation.PlanDigest || statement.Verb != shown.Operation.Verb {
		return d, errors.New("the control plane asks for a signature of something else than it shows")
	}
	statement.Decision, statement.Comment, statement.UserID = decision, comment, *state.UserID
	return governance.Decision{OperationID: statement.OperationID, PlanDigest: statement.PlanDigest, Decision: decision, Comment: comment,
		Signature: governance.Sign(key, statement.Bytes())}, nil
}

func printValue(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return printEnvelope(w, raw, nil)
}
