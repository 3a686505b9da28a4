package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/creack/pty"
)

// Exchange is what a program asks on its terminal, in lower case and to its end, and what the person types.
type Exchange struct{ Asked, Typed string }

// Email is the person's address.
const Email = "operator@example.com"

// Init makes the account's person and the human key, as a person at a terminal does.
func (i *Installation) Init(ctx context.Context) error {
	_, err := Converse(ctx, i.Command(ctx, "init"), []Exchange{{"e-mail address:", Email}, {"name:", "The Operator"},
		{"passphrase:", i.Passphrase}, {"passphrase again:", i.Passphrase}})
	return err
}

// Approve decides a parked call as a person at a terminal does.
func (i *Installation) Approve(ctx context.Context, operation string) error {
	_, err := Converse(ctx, i.Command(ctx, "approvals", "approve", operation), []Exchange{{"approve? [y/n]", "yes"}, {"passphrase:", i.Passphrase}})
	return err
}

// Converse runs a program on a pseudo-terminal of its own and types the answers, each when its question was asked.
// It answers all that the program printed.
func Converse(ctx context.Context, cmd *exec.Cmd, exchanges []Exchange) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return onTerminal(ctx, cmd, func(said string) (string, bool) {
		if len(exchanges) == 0 || !asks(said, exchanges[0]) {
			return "", false
		}
		typed := exchanges[0].Typed
		exchanges = exchanges[1:]
		return typed, true
	})
}

// Attend is Converse with a person who stays at the terminal until the program ends: each question is answered
// whenever it is asked.
func Attend(ctx context.Context, cmd *exec.Cmd, exchanges []Exchange) (string, error) {
	return onTerminal(ctx, cmd, func(said string) (string, bool) {
		i := slices.IndexFunc(exchanges, func(e Exchange) bool { return asks(said, e) })
		if i < 0 {
			return "", false
		}
		return exchanges[i].Typed, true
	})
}

// asks says whether what a program printed since the last answer ends with a question, on a line of its own.
func asks(said string, e Exchange) bool {
	line := said[strings.LastIndexByte(said, '\n')+1:]
	return strings.HasSuffix(strings.TrimRight(strings.ToLower(line), " "), e.Asked)
}

// onTerminal runs a program on a pseudo-terminal and types what reply answers to what was printed since it typed last.
func onTerminal(ctx context.Context, cmd *exec.Cmd, reply func(said string) (typed string, asked bool)) (string, error) {
	terminal, err := pty.Start(cmd)
	if err != nil {
		return "", fmt.Errorf("start %s on a terminal: %w", strings.Join(cmd.Args, " "), err)
	}
	defer terminal.Close()
	printed := make(chan []byte)
	go func() {
		defer close(printed)
		buffer := make([]byte, 4096)
		for {
			n, err := terminal.Read(buffer)
			if n > 0 {
				printed <- bytes.Clone(buffer[:n])
			}
			if err != nil { // the terminal ends with its program
				return
			}
		}
	}()
	all, err := answer(ctx, terminal, printed, reply)
	if err != nil {
		return all, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	if err := cmd.Wait(); err != nil {
		return all, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[1:], " "), err, all)
	}
	return all, nil
}

func answer(ctx context.Context, terminal io.Writer, printed <-chan []byte, reply func(said string) (string, bool)) (string, error) {
	var all strings.Builder
	seen := 0
	for {
		select {
		case chunk, open := <-printed:
			all.Write(chunk)
			if !open {
				return all.String(), nil
			}
		case <-ctx.Done():
			return all.String(), fmt.Errorf("the terminal program did not go on: %w; it printed: %s", ctx.Err(), all.String())
		}
		typed, asked := reply(all.String()[seen:])
		if !asked {
			continue
		}
		if _, err := io.WriteString(terminal, typed+"\n"); err != nil {
			return all.String(), fmt.Errorf("type an answer: %w", err)
		}
		seen = all.Len()
	}
}
