package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/tools/rest"
)

// client is a running control plane as the commands use it. dialServe gives the one behind the state directory's
// socket; an error of it is a *schema.Error or *tools.UnknownVerbError where the control plane refused.
type client interface {
	// As is the client for a person's or an agent's token, in place of the account's agent.
	As(token string) client
	// Call calls a verb as the account's agent; pending says that a person must decide the call first.
	Call(ctx context.Context, verb string, arguments json.RawMessage) (result json.RawMessage, pending bool, err error)
	// People asks people's surface: request is one of tools.People…, in and out are its types there (nil: none).
	People(ctx context.Context, request string, in, out any) error
	Close() error
}

// dialer connects to the control plane of a state directory, and starts one where none runs.
type dialer func(ctx context.Context, dir stateDir) (client, error)

// dialerKey is where a command's context may hold another dialer: a test's.
type dialerKey struct{}

// clientWork is what a command does with the control plane of a state directory.
type clientWork func(cmd *cobra.Command, args []string, c client, dir stateDir) error

// withClient runs a command's work with the control plane of the installation that is there.
func withClient(work clientWork) func(*cobra.Command, []string) error {
	return connected(standingStateDir, work)
}

// withOwnClient is withClient for a command that makes the installation where there is none.
func withOwnClient(work clientWork) func(*cobra.Command, []string) error {
	return connected(makingStateDir, work)
}

func connected(find func(*cobra.Command) (stateDir, error), work clientWork) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		dir, err := find(cmd)
		if err != nil {
			return err
		}
		dial, ok := cmd.Context().Value(dialerKey{}).(dialer)
		if !ok {
			dial = dialServe
		}
		c, err := dial(cmd.Context(), dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		return work(cmd, args, c, dir)
	}
}

// printEnvelope writes a call's answer; a refused one also says how the process ends.
func printEnvelope(w io.Writer, result json.RawMessage, err error) error {
	out, failed := rest.Wrap(result, err)
	if failed != nil {
		return failed
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	if _, err := w.Write(spelt(b.Bytes())); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if out.Error != nil {
		return exitCode(exitOf(out.Error))
	}
	return nil
}

// spelt is a JSON document in which what a terminal would obey is spelt out: JSON itself lets all but the oldest control
// characters through, and texts of machines are shown here.
func spelt(document []byte) []byte {
	if !bytes.ContainsFunc(document, obeyed) {
		return document
	}
	var out bytes.Buffer
	for _, r := range string(document) {
		if obeyed(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.Bytes()
}

func obeyed(r rune) bool {
	return r >= 0x7f && r != utf8.RuneError && governance.Plain(string(r), 1) != string(r)
}
