package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"powernode/schema"
	"powernode/tools"
)

// client is a running control plane as the commands use it. dialServe gives the one behind the state directory's
// socket; an error of it is a *schema.Error or *tools.UnknownVerbError where the control plane refused.
type client interface {
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

// connect gives a command its state directory and the control plane of it.
func connect(cmd *cobra.Command) (client, stateDir, error) {
	dir, err := openStateDir(cmd)
	if err != nil {
		return nil, "", err
	}
	dial, ok := cmd.Context().Value(dialerKey{}).(dialer)
	if !ok {
		dial = dialServe
	}
	c, err := dial(cmd.Context(), dir)
	return c, dir, err
}

// withClient runs a command's work with the control plane.
func withClient(work func(cmd *cobra.Command, args []string, c client, dir stateDir) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		c, dir, err := connect(cmd)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		return work(cmd, args, c, dir)
	}
}

// envelope is how the command line and REST wrap a result.
type envelope struct {
	Success bool            `json:"success"`
	Data    json.RawMessage `json:"data,omitempty"`
	Error   *schema.Error   `json:"error,omitempty"`
}

// printEnvelope writes a call's answer; a refused one also ends the process with 1.
func printEnvelope(w io.Writer, result json.RawMessage, err error) error {
	out := envelope{Success: err == nil, Data: result}
	var unknown *tools.UnknownVerbError
	switch {
	case err == nil:
	case errors.As(err, &out.Error):
		out.Data = nil
	case errors.As(err, &unknown):
		out.Data = nil
		out.Error = schema.Errorf(schema.NotFound, "unknown verb %s", unknown.Name).WithDetail("candidates", unknown.Candidates)
	default:
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if !out.Success {
		return exitCode(1)
	}
	return nil
}
