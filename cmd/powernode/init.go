package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"powernode/agent/atomicfile"
	"powernode/internal/humankey"
	"powernode/platform/governance"
	"powernode/tools"
)

func initCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the account's first person and their human key; the first step of an installation",
		Long: "Make the account's first person and their human key. Without it calls run, but nothing that needs an approval can be\n" +
			"approved. The key is sealed with a passphrase, which is asked on the terminal and taken from nowhere else.\n\n" +
			"Whoever runs init first is the person: run it before an assistant that shares your user gets to work. A key that is\n" +
			"there is replaced with --replace, with the old passphrase or by root.\n\n" +
			"It works with the control plane of the state directory, and where none runs with one of its own, which it ends again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			dir, err := openStateDir(cmd)
			if err != nil {
				return err
			}
			if !serveHolds(dir) { // a control plane that is started for this alone ends with it
				defer func() {
					_, stopped := stopServe(context.WithoutCancel(cmd.Context()), dir)
					err = errors.Join(err, stopped)
				}()
			}
			return withOwnClient(func(cmd *cobra.Command, _ []string, c client, dir stateDir) error {
				return o.run(cmd.Context(), c, dir)
			})(cmd, nil)
		},
	}
	cmd.Flags().StringVar(&o.email, "email", "", "the person's e-mail address; asked where it is not given")
	cmd.Flags().StringVar(&o.name, "name", "", "the person's name; asked where it is not given")
	cmd.Flags().BoolVar(&o.replace, "replace", false, "put a new key in the place of the one that is there")
	return cmd
}

type initOptions struct {
	email, name string
	replace     bool
}

func (o initOptions) run(ctx context.Context, c client, dir stateDir) (err error) {
	as := ""
	if o.replace {
		as = o.email
	}
	state, err := standingKeys(ctx, c, dir, as)
	if err != nil {
		return err
	}
	switch {
	case state.PublicKey != nil && !o.replace:
		return fmt.Errorf("there is a human key already, of %s: powernode init --replace puts a new one in its place", governance.Quote(*state.Email))
	case state.PublicKey == nil && o.replace:
		return errors.New("there is no human key yet: run powernode init")
	}
	t, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := o.ask(t, state); err != nil {
		return err
	}
	in, key, err := o.make(t, dir, state)
	if err != nil {
		return err
	}
	passphrase, err := t.NewPassphrase()
	if err != nil {
		return err
	}
	path := dir.humanKeyFile()
	if old, err := dir.keyFileOf(state.PublicKey); err == nil && old != dir.newHumanKeyFile() {
		path = old
	}
	// The new file lies beside the old one until the record names it: killed in between, openKey finds either.
	if err := humankey.Write(dir.newHumanKeyFile(), in.Email, key, passphrase); err != nil {
		return err
	}
	if err := c.People(ctx, tools.PeopleRecordKey, in, &state); err != nil {
		return errors.Join(err, os.Remove(dir.newHumanKeyFile()))
	}
	if err := os.Rename(dir.newHumanKeyFile(), path); err != nil {
		return fmt.Errorf("put the key in its place: %w", err)
	}
	t.Say("%s can approve from now on. The key is sealed in %s: keep the passphrase, nobody can recover it.", governance.Quote(in.Email), path)
	return nil
}

func (o *initOptions) ask(t *terminal, state tools.KeyState) (err error) {
	if state.PublicKey != nil { // the key changes, not whose it is
		o.email, o.name = *state.Email, *state.Email
		if state.Name != nil {
			o.name = *state.Name
		}
		return nil
	}
	if o.email, err = askFor(t, "E-mail address: ", o.email, "", governance.CheckEmail); err != nil {
		return err
	}
	o.name, err = askFor(t, "Name: ", o.name, o.email, governance.CheckName)
	return err
}

// maxAsked is how often an answer may be refused.
const maxAsked = 5

// askFor is what was given, else what the person answers: one that is refused is asked again at once.
func askFor(t *terminal, question, given, otherwise string, check func(string) error) (string, error) {
	if given != "" {
		return given, check(given)
	}
	for n := 1; ; n++ {
		answer, err := t.Ask(question, otherwise)
		if err != nil {
			return "", err
		}
		refused := check(answer)
		if refused == nil || n == maxAsked {
			return answer, refused
		}
		t.Say("%s", refused)
	}
}

// make makes the key, with what gives it the right to stand.
func (o *initOptions) make(t *terminal, dir stateDir, state tools.KeyState) (governance.KeyInput, ed25519.PrivateKey, error) {
	var in governance.KeyInput
	var old ed25519.PrivateKey
	if state.PublicKey != nil && os.Geteuid() != 0 {
		var err error
		if old, err = openKey(t, dir, state, "Old passphrase: "); err != nil {
			return in, nil, err
		}
	}
	key, err := humankey.Generate()
	if err != nil {
		return in, nil, err
	}
	in = governance.KeyInput{Email: o.email, Name: o.name, PublicKey: key.Public().(ed25519.PublicKey), Chain: &state.Chain}
	statement := in.Statement(state.AccountID)
	in.Proof = governance.Sign(key, statement)
	switch {
	case old != nil:
		in.Authority = governance.Sign(old, statement)
	case state.PublicKey != nil:
		return in, key, o.markAsRoot(t, dir, key)
	}
	return in, key, nil
}

// markAsRoot names the new key in a file that root alone can have made, after asking.
func (o *initOptions) markAsRoot(t *terminal, dir stateDir, key ed25519.PrivateKey) error {
	yes, err := t.Confirm(fmt.Sprintf("Replace the human key of %s as root?", governance.Quote(o.email)))
	if err != nil {
		return err
	}
	if !yes {
		return errors.New("nothing was changed")
	}
	mode := os.FileMode(0o600)
	if info, err := os.Stat(string(dir)); err == nil {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
			mode = 0o644 // the control plane runs as another user, and must read it
		}
	}
	named := base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey)) + "\n"
	return atomicfile.Write(dir.file(governance.RootMark), []byte(named), mode)
}

func (d stateDir) newHumanKeyFile() string { return d.file("human.key.new") }

// openKey opens the person's key. A key file that is not the recorded key's counts as none.
func openKey(t *terminal, dir stateDir, state tools.KeyState, question string) (ed25519.PrivateKey, error) {
	if state.PublicKey == nil {
		return nil, errNoHumanKey
	}
	path, err := dir.keyFileOf(state.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("no usable human key: %s is not the key that the audit chain records for %s", dir.humanKeyFile(), governance.Quote(*state.Email))
	}
	passphrase, err := t.Passphrase(question)
	if err != nil {
		return nil, err
	}
	return humankey.Open(path, passphrase)
}
