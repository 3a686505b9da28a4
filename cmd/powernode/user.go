package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"powernode/internal/humankey"
	"powernode/platform/governance"
	"powernode/tools"
)

func userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "See, add, change and remove the account's people",
		Long: "See, add, change and remove the account's people. What changes them is an administrator's doing: it is asked on the\n" +
			"terminal and signed with a human key.",
	}
	declareSigner(cmd)
	cmd.AddCommand(userListCommand(), userAddCommand(), userRoleCommand(), userRemoveCommand(), userKeyCommand())
	return cmd
}

func userListCommand() *cobra.Command {
	return listCommand("List the account's people", tools.PeopleUsers,
		func(w io.Writer, a tools.UsersAnswer) error { return printUsers(w, a.Users) })
}

func printUsers(w io.Writer, users []governance.PersonView) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tEMAIL\tNAME\tROLE\tKEY\tGRANTS\tNOTE")
	for _, u := range users {
		key, note := "no", ""
		if u.HasKey {
			key = "yes"
		}
		if u.Note != nil {
			note = *u.Note
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", governance.Plain(string(u.ID), 64), governance.Plain(u.Email, 200),
			governance.Plain(u.Name, 80), governance.Plain(u.Role, 20), key, strings.Join(u.Grants, " "), note)
	}
	return table.Flush()
}

func userAddCommand() *cobra.Command {
	in := tools.PrepareUserRequest{Deed: governance.AddUser}
	cmd := &cobra.Command{
		Use:     "add EMAIL",
		Short:   "Add a person",
		Long:    "Add a person. They act through tokens (powernode token create --user EMAIL), and sign once they have a key (powernode user key EMAIL).",
		Example: "  powernode user add bob@example.org --name Bob --role operator",
		Args:    cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			in.Email = args[0]
			if in.Name == "" {
				in.Name = in.Email
			}
			return setUser(cmd, c, dir, in, fmt.Sprintf("Add %s as %s%s?", governance.Quote(in.Email), in.Role, grantsText(in.Grants)))
		}),
	}
	cmd.Flags().StringVar(&in.Name, "name", "", "the person's name; their e-mail address where it is not given")
	userRoleFlags(cmd, &in)
	return cmd
}

func userRoleFlags(cmd *cobra.Command, in *tools.PrepareUserRequest) {
	cmd.Flags().StringVar(&in.Role, "role", governance.RoleViewer, "viewer, operator or admin")
	cmd.Flags().StringSliceVar(&in.Grants, "grant", nil, "a permission that an administrator has by name: admin.audit.read")
}

func userRoleCommand() *cobra.Command {
	in := tools.PrepareUserRequest{Deed: governance.ChangeUser}
	cmd := &cobra.Command{
		Use:     "role EMAIL ROLE",
		Short:   "Change a person's role, and the permissions that they have by name",
		Long:    "Change a person's role to viewer, operator or admin. It counts for each of their tokens from the next call on. Permissions\nby name are those of --grant: without it they have none.",
		Example: "  powernode user role bob@example.org admin --grant admin.audit.read",
		Args:    cobra.ExactArgs(2),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			in.User, in.Role = args[0], args[1]
			return setUser(cmd, c, dir, in, fmt.Sprintf("Make %s %s%s?", governance.Quote(in.User), governance.Plain(in.Role, 20), grantsText(in.Grants)))
		}),
	}
	cmd.Flags().StringSliceVar(&in.Grants, "grant", nil, "a permission that an administrator has by name: admin.audit.read")
	return cmd
}

func userRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove EMAIL",
		Short: "Remove a person: their tokens and their key end",
		Args:  cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			return setUser(cmd, c, dir, tools.PrepareUserRequest{Deed: governance.RemoveUser, User: args[0]},
				fmt.Sprintf("Remove %s?", governance.Quote(args[0])))
		}),
	}
}

func grantsText(grants []string) string {
	if len(grants) == 0 {
		return ""
	}
	return " with " + governance.Plain(strings.Join(grants, ", "), 200)
}

// setUser asks on the terminal, signs with an administrator's key, and does it.
func setUser(cmd *cobra.Command, c client, dir stateDir, in tools.PrepareUserRequest, question string) (err error) {
	ctx := cmd.Context()
	state, err := signerOf(cmd, c, dir)
	if err != nil {
		return err
	}
	in.SignedBy = *state.UserID
	var statement governance.UserStatement
	if err := c.People(ctx, tools.PeoplePrepareUser, in, &statement); err != nil {
		return err
	}
	// What is signed is what was asked for; the control plane only names the person and the change.
	signed := governance.UserStatement{AccountID: state.AccountID, ChangeID: statement.ChangeID, Deed: in.Deed, UserID: statement.UserID,
		Email: in.Email, Name: in.Name, Role: in.Role, Grants: slices.Compact(slices.Sorted(slices.Values(in.Grants))), SignedBy: in.SignedBy,
		Chain: statement.Chain}
	if in.Deed != governance.AddUser {
		if statement.Email != in.User && string(statement.UserID) != in.User {
			return errors.New("the control plane asks for a signature about somebody else")
		}
		signed.Email, signed.Name = statement.Email, statement.Name
	}
	t, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	key, err := signing(t, dir, state, question)
	if err != nil {
		return err
	}
	var done governance.PersonView
	err = c.People(ctx, tools.PeopleSetUser, governance.UserInput{User: signed, Signature: governance.Sign(key, signed.Bytes())}, &done)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", governance.Plain(done.Email, 200), map[string]string{governance.AddUser: "added, " + done.Role,
		governance.ChangeUser: done.Role, governance.RemoveUser: "removed"}[in.Deed])
	return nil
}

func userKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "key EMAIL",
		Short: "Give a person a human key of their own, so that they can sign",
		Long: "Give a person who has none a human key of their own. An administrator signs it, then the person chooses its passphrase,\n" +
			"on the same terminal. The key is kept in the state directory beside the first person's.",
		Args: cobra.ExactArgs(1),
		RunE: withClient(func(cmd *cobra.Command, args []string, c client, dir stateDir) error {
			return giveKey(cmd, c, dir, args[0])
		}),
	}
}

func giveKey(cmd *cobra.Command, c client, dir stateDir, email string) (err error) {
	ctx := cmd.Context()
	state, err := signerOf(cmd, c, dir)
	if err != nil {
		return err
	}
	var answer tools.UsersAnswer
	if err := c.People(ctx, tools.PeopleUsers, nil, &answer); err != nil {
		return err
	}
	i := slices.IndexFunc(answer.Users, func(u governance.PersonView) bool { return u.Email == email && u.Note == nil })
	switch {
	case i < 0:
		return fmt.Errorf("the account has nobody with the e-mail address %s", governance.Quote(email))
	case answer.Users[i].HasKey:
		return fmt.Errorf("%s has a human key already", governance.Quote(email))
	}
	t, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	by, err := signing(t, dir, state, fmt.Sprintf("Give %s a human key, signed by %s?", governance.Quote(email), governance.Quote(*state.Email)))
	if err != nil {
		return err
	}
	t.Say("Now %s chooses the passphrase of their key.", governance.Quote(email))
	return makeKeyFor(cmd, c, dir, t, state, answer.Users[i], by)
}

func makeKeyFor(cmd *cobra.Command, c client, dir stateDir, t *terminal, state tools.KeyState, u governance.PersonView, by ed25519.PrivateKey) error {
	passphrase, err := t.NewPassphrase()
	if err != nil {
		return err
	}
	key, err := humankey.Generate()
	if err != nil {
		return err
	}
	in := governance.KeyInput{Email: u.Email, Name: u.Name, PublicKey: key.Public().(ed25519.PublicKey), Chain: &state.Chain}
	statement := in.Statement(state.AccountID)
	in.Proof, in.Authority = governance.Sign(key, statement), governance.Sign(by, statement)
	path := dir.humanKeyFile() + "." + string(u.ID)
	if err := humankey.Write(path, u.Email, key, passphrase); err != nil {
		return err
	}
	if err := c.People(cmd.Context(), tools.PeopleRecordKey, in, nil); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	t.Say("%s can sign from now on. The key is sealed in %s: nobody can recover its passphrase.", governance.Quote(u.Email), path)
	return nil
}
