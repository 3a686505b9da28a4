package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"powernode/internal/humankey"
	"powernode/platform/governance"
	"powernode/schema"
	"powernode/tools"
)

// signerFlag says who signs, where several people have their keys in one state directory.
const signerFlag = "as"

// declareSigner gives a command and those below it the flag.
func declareSigner(cmd *cobra.Command) {
	cmd.PersistentFlags().String(signerFlag, "", "who signs, by e-mail address, where several people have their keys here")
}

// standingKeys asks whose human keys stand, and narrows the answer to the one that signs: as names them by e-mail address,
// and without it, it is who alone has their key here, else who has had one longest.
func standingKeys(ctx context.Context, c client, dir stateDir, as string) (tools.KeyState, error) {
	var state tools.KeyState
	if err := c.People(ctx, tools.PeopleKey, nil, &state); err != nil || state.PublicKey == nil {
		return state, err
	}
	holders := state.Keys
	if as != "" {
		holders = slices.DeleteFunc(slices.Clone(holders), func(h tools.KeyHolder) bool { return !strings.EqualFold(h.Email, as) })
		if len(holders) == 0 {
			return state, fmt.Errorf("%s has no human key", governance.Quote(as))
		}
	}
	for _, h := range holders {
		if _, err := dir.keyFileOf(h.PublicKey); err == nil || as != "" {
			state.UserID, state.Email, state.PublicKey = &h.UserID, &h.Email, h.PublicKey
			break
		}
	}
	return state, nil
}

// errNoHumanKey says that nobody can sign yet.
var errNoHumanKey = schema.Errorf(schema.PreconditionFailed, "no human key yet: run powernode init")

// signerOf is whose key signs what a command is to do: who the command's flag names. It refuses where nobody can sign.
func signerOf(cmd *cobra.Command, c client, dir stateDir) (tools.KeyState, error) {
	as, err := cmd.Flags().GetString(signerFlag)
	if err != nil {
		return tools.KeyState{}, fmt.Errorf("read flag %s: %w", signerFlag, err)
	}
	state, err := standingKeys(cmd.Context(), c, dir, as)
	if err == nil && state.PublicKey == nil {
		err = errNoHumanKey
	}
	return state, err
}

var errNoKeyFile = errors.New("no file of the key")

// keyFileOf finds the file of a human key: the first person's, one that is being put in its place, or a further person's.
func (d stateDir) keyFileOf(public []byte) (string, error) {
	further, err := filepath.Glob(d.humanKeyFile() + ".*")
	if err != nil {
		return "", fmt.Errorf("look for key files: %w", err)
	}
	for _, path := range append([]string{d.humanKeyFile()}, further...) {
		found, err := humankey.Public(path)
		if err == nil && found.Equal(ed25519.PublicKey(public)) {
			return path, nil
		}
	}
	return "", errNoKeyFile
}

// signing asks a question on the terminal and opens the key of who signs. Closing the terminal is the caller's.
func signing(t *terminal, dir stateDir, state tools.KeyState, question string) (ed25519.PrivateKey, error) {
	yes, err := t.Confirm(question)
	if err != nil {
		return nil, err
	}
	if !yes {
		return nil, errors.New("nothing was changed")
	}
	return openKey(t, dir, state, "Passphrase: ")
}
