package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/store"
	"powernode/tools"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "See, make and revoke credentials",
		Long: "See, make and revoke credentials: of people, who act with at most their own role, and of the account's agent, for an\n" +
			"assistant that connects over HTTP. Making and revoking is an administrator's doing, signed with a human key.",
	}
	declareSigner(cmd)
	cmd.AddCommand(tokenListCommand(), tokenCreateCommand(), tokenRevokeCommand())
	return cmd
}

func tokenListCommand() *cobra.Command {
	return listCommand("List credentials, latest first; the secrets are nowhere", tools.PeopleTokens,
		func(w io.Writer, a tools.TokensAnswer) error { return printTokens(w, a.Tokens) })
}

func printTokens(w io.Writer, tokens []governance.TokenView) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tNAME\tOF\tROLE\tNARROWED TO\tSTATE\tEXPIRES\tLAST USED")
	for _, t := range tokens {
		of, narrowed := "the account's agent", strings.Join(t.Toolsets, ",")
		if t.Email != nil {
			of = governance.Plain(*t.Email, 200)
		}
		if t.ReadOnly {
			narrowed = strings.TrimPrefix(narrowed+",read-only", ",")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", governance.Plain(string(t.ID), 64), governance.Plain(t.Name, 80), of,
			governance.Plain(t.Role, 20), governance.Plain(narrowed, 200), t.State, instantText(t.ExpiresAt), instantText(t.LastUsedAt))
	}
	return table.Flush()
}

func instantText(t *store.Time) string {
	if t == nil {
		return "never"
	}
	return t.String()
}

// tokenOptions are a new credential as the command line says it.
type tokenOptions struct {
	user, name, role string
	readOnly         bool
	toolsets         []string
	ttl              time.Duration
	file             string
}

func tokenCreateCommand() *cobra.Command {
	var o tokenOptions
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a credential; its secret is shown once",
		Long: "Make a credential. With --user it is a person's, with at most their role; without, it is the account's agent's. The secret\n" +
			"is made here and shown once, or written to the file of --out: the control plane keeps its hash alone.",
		Example: "  powernode token create --user bob@example.org --role operator --name laptop --ttl 720h\n" +
			"  powernode token create --name assistant --toolsets fleet,kubernetes",
		Args: cobra.NoArgs,
		RunE: withClient(func(cmd *cobra.Command, _ []string, c client, dir stateDir) error { return o.run(cmd, c, dir) }),
	}
	cmd.Flags().StringVar(&o.user, "user", "", "whose it is, by e-mail address or id; without it, the account's agent's")
	cmd.Flags().StringVar(&o.name, "name", "", "what it is for, for the list (default: whose it is)")
	cmd.Flags().StringVar(&o.role, "role", "", "viewer, operator or admin, at most the person's own")
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "it can only read")
	cmd.Flags().StringSliceVar(&o.toolsets, "toolsets", nil, "it reaches these toolsets alone")
	cmd.Flags().DurationVar(&o.ttl, "ttl", 0, "how long it is valid, for example 720h (default: until it is revoked)")
	cmd.Flags().StringVar(&o.file, "out", "", "write the secret to this new file (0600) and do not show it")
	return cmd
}

func (o tokenOptions) run(cmd *cobra.Command, c client, dir stateDir) (err error) {
	ctx := cmd.Context()
	state, err := signerOf(cmd, c, dir)
	if err != nil {
		return err
	}
	secret := governance.NewSecret()
	in, err := o.request(secret)
	if err != nil {
		return err
	}
	in.SignedBy = *state.UserID
	var statement governance.TokenStatement
	if err := c.People(ctx, tools.PeoplePrepareToken, in, &statement); err != nil {
		return err
	}
	if o.user != statement.Email && o.user != string(statement.UserID) {
		return errors.New("the control plane asks for a signature about somebody else")
	}
	// What is signed is what was asked for; the control plane only names the token and the person.
	signed := governance.TokenStatement{AccountID: state.AccountID, TokenID: statement.TokenID, UserID: statement.UserID, Email: statement.Email,
		Name: in.Name, Role: in.Role, ReadOnly: in.ReadOnly, Toolsets: in.Toolsets, SHA256: in.SHA256, ExpiresAt: in.ExpiresAt, SignedBy: in.SignedBy,
		Chain: statement.Chain}
	t, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	key, err := signing(t, dir, state, o.question(in))
	if err != nil {
		return err
	}
	if err := o.keep(secret); err != nil {
		return err
	}
	var made governance.TokenView
	err = c.People(ctx, tools.PeopleSetToken, governance.TokenInput{Token: signed, Signature: governance.Sign(key, signed.Bytes())}, &made)
	if err != nil {
		return errors.Join(err, o.drop())
	}
	if o.file == "" {
		fmt.Fprintln(cmd.OutOrStdout(), secret)
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s: written to %s\n", made.ID, made.Role, o.file)
	return nil
}

func (o tokenOptions) request(secret string) (tools.PrepareTokenRequest, error) {
	in := tools.PrepareTokenRequest{User: o.user, Name: o.name, Role: o.role, ReadOnly: o.readOnly, SHA256: store.Secret(secret).Hash()}
	switch {
	case o.user == "" && o.role == "":
		in.Role = governance.RoleAgent
	case o.role == "":
		return in, errors.New("--role is required with --user: viewer, operator or admin")
	case o.ttl < 0:
		return in, errors.New("--ttl must not be negative")
	}
	if in.Name == "" {
		in.Name = o.user
	}
	if in.Name == "" {
		in.Name = "agent"
	}
	if len(o.toolsets) > 0 {
		in.Toolsets = o.toolsets
	}
	if o.ttl > 0 {
		end := store.At(time.Now().Add(o.ttl))
		in.ExpiresAt = &end
	}
	return in, nil
}

func (o tokenOptions) question(in tools.PrepareTokenRequest) string {
	of := "the account's agent"
	if o.user != "" {
		of = governance.Quote(o.user)
	}
	q := fmt.Sprintf("Make a token of %s, role %s", of, governance.Plain(in.Role, 20))
	if in.ReadOnly {
		q += ", read only"
	}
	if in.Toolsets != nil {
		q += ", toolsets " + governance.Plain(strings.Join(in.Toolsets, ", "), 200)
	}
	if in.ExpiresAt != nil {
		q += ", until " + in.ExpiresAt.String()
	}
	return q + "?"
}

// keep writes the secret to a file that was not there.
func (o tokenOptions) keep(secret string) error {
	if o.file == "" {
		return nil
	}
	f, err := os.OpenFile(o.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make the token file: %w", err)
	}
	_, err = io.WriteString(f, secret+"\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the token file: %w", err), o.drop())
	}
	return nil
}

func (o tokenOptions) drop() error {
	if o.file == "" {
		return nil
	}
	return os.Remove(o.file)
}

func tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "End a credential at once",
		Args:  cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) (err error) {
			ctx := cmd.Context()
			state, err := signerOf(cmd, c, dir)
			if err != nil {
				return err
			}
			t, err := openTerminal()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, t.Close()) }()
			key, err := signing(t, dir, state, fmt.Sprintf("Revoke token %s?", governance.Plain(args[0], 64)))
			if err != nil {
				return err
			}
			r := governance.RevocationStatement{AccountID: state.AccountID, TokenID: store.TokenID(args[0]), SignedBy: *state.UserID}
			var ended governance.TokenView
			err = c.People(ctx, tools.PeopleRevokeToken, governance.RevocationInput{Revocation: r, Signature: governance.Sign(key, r.Bytes())}, &ended)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %s\n", ended.ID, governance.Plain(ended.Name, 80), ended.State)
			return nil
		}),
	}
}
