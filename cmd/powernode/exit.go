package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"powernode/schema"
	"powernode/tools"
)

// Exit codes of the program. They are part of its interface: scripts branch on them.
const (
	exitFailure = 1
	exitUsage   = 2
)

// exitCodes are those of refusals, by code.
var exitCodes = map[schema.Code]exitCode{
	schema.InvalidArguments:   3,
	schema.NotFound:           4,
	schema.Conflict:           5,
	schema.PreconditionFailed: 6,
	schema.PermissionDenied:   7,
	schema.BlockedByPolicy:    8,
	schema.Unavailable:        9,
	schema.Internal:           10,
}

const exitCodesText = `Exit codes:

   0  done, or parked: a person must decide the call first ("pending": true)
   1  the program failed: no control plane, no terminal, a file that can't be read
   2  the command line is wrong: nothing was called
   3  invalid_arguments     the arguments break the verb's schema or rules
   4  not_found             an id that is not in the account; a verb that there is not
   5  conflict              a name that is taken, an overlap, a stale plan
   6  precondition_failed   the state does not allow it, or a floor forbids it
   7  permission_denied     the role lacks the permission, or a person's credential is needed
   8  blocked_by_policy     a policy or the emergency stop forbids it
   9  unavailable           a provider, an agent, an API server or the disk did not do its part: try again
  10  internal              a fault of ours

What was refused has changed nothing. powernode approvals approve ends with the code of the call that it approved, where that
failed or could not be approved any more; with 5 where the operation had been decided before. "retryable" in the error says whether the same call may do later.
`

// exitCode is an error that says how the process ends and has been told already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a command line that says nothing that could be done.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitOf is how the process ends with an error.
func exitOf(err error) int {
	var told exitCode
	var coded *schema.Error
	var unknown *tools.UnknownVerbError
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &told):
		return int(told)
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unknown):
		return int(exitCodes[schema.NotFound])
	case errors.As(err, &coded) && exitCodes[coded.Code] != 0:
		return int(exitCodes[coded.Code])
	}
	return exitFailure
}

// exitCodesTopic is powernode help exit-codes.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "How the program ends, for scripts", Long: exitCodesText}
}

// strict has every command below say where a command line is wrong, and end with the code for that: also a word behind a
// command that only groups others, which would show help and succeed.
func strict(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			switch {
			case err == nil:
				return nil
			case strings.HasPrefix(err.Error(), "unknown command"): // of one that takes no arguments
				return usageError{err}
			}
			return usagef("got %d arguments; the command is %s", len(args), strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
	}
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
}

// unknownCommand refuses a word that is none of a command's.
func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			names = append(names, sub.Name())
		}
	}
	if near := schema.Nearest(word, names); near != "" {
		return usagef("unknown command %q for %q: did you mean %s?", word, cmd.CommandPath(), near)
	}
	return usagef("unknown command %q for %q", word, cmd.CommandPath())
}

// strictHelp has powernode help refuse what there is no help about, where it would show all the rest and succeed.
func strictHelp(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		show := cmd.Run
		cmd.Run = nil
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			switch {
			case err != nil || len(rest) > 0 && about.HasSubCommands():
				return unknownCommand(about, append(rest, args...)[0])
			case len(rest) == 1 && about.Name() == "call":
				return helpCall(about, rest[0])
			case len(rest) > 0:
				return usagef("there is no help about %q of %q", rest[0], about.CommandPath())
			}
			show(cmd, args)
			return nil
		}
	}
}

// wrongFlag is a command line with a flag that is none, and the one that may have been meant.
func wrongFlag(cmd *cobra.Command, err error) error {
	var none *pflag.NotExistError
	if !errors.As(err, &none) {
		return usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := schema.Nearest(none.GetSpecifiedName(), names); near != "" {
		return usagef("%w for %q: did you mean --%s?", err, cmd.CommandPath(), near)
	}
	return usagef("%w for %q", err, cmd.CommandPath())
}
