package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"powernode/internal/humankey"
)

// terminal is the controlling terminal of this process: what a person alone is to say is asked there, and taken from no
// argument, environment variable, file or pipe.
type terminal struct{ tty *os.File }

func openTerminal() (*terminal, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, errors.New("this needs a person at a terminal: the process has no controlling terminal")
	}
	if !term.IsTerminal(int(tty.Fd())) {
		return nil, errors.Join(errors.New("this needs a person at a terminal"), tty.Close())
	}
	return &terminal{tty: tty}, nil
}

func (t *terminal) Close() error { return t.tty.Close() }

// Say writes a line.
func (t *terminal) Say(format string, args ...any) { fmt.Fprintf(t.tty, format+"\r\n", args...) }

// Ask reads a line; an empty one is the given answer.
func (t *terminal) Ask(question, otherwise string) (string, error) {
	fmt.Fprint(t.tty, question)
	line, err := t.line()
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if line = strings.TrimSpace(line); line == "" {
		line = otherwise
	}
	return line, nil
}

// line reads one line byte by byte: what follows it is for the next question.
func (t *terminal) line() (string, error) {
	var out []byte
	var b [1]byte
	for {
		n, err := t.tty.Read(b[:])
		switch {
		case n == 1 && (b[0] == '\n' || b[0] == '\r'):
			return string(out), nil
		case n == 1:
			out = append(out, b[0])
		case errors.Is(err, io.EOF) && len(out) > 0:
			return string(out), nil
		case err != nil:
			return "", err
		}
	}
}

// Confirm asks a question that only "y" or "yes" answers with yes.
func (t *terminal) Confirm(question string) (bool, error) {
	answer, err := t.Ask(question+" [y/N] ", "n")
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// Passphrase reads a passphrase without showing it. What is typed is hidden before the question appears.
func (t *terminal) Passphrase(question string) (secret []byte, err error) {
	fd := int(t.tty.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("look at the terminal: %w", err)
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	hidden.Lflag |= unix.ICANON | unix.ISIG
	hidden.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &hidden); err != nil {
		return nil, fmt.Errorf("hide what is typed: %w", err)
	}
	defer func() { err = errors.Join(err, unix.IoctlSetTermios(fd, unix.TCSETS, before)) }()
	fmt.Fprint(t.tty, question)
	line, err := t.line()
	fmt.Fprint(t.tty, "\r\n")
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w", err)
	}
	return []byte(line), nil
}

// NewPassphrase asks for a passphrase twice.
func (t *terminal) NewPassphrase() ([]byte, error) {
	first, err := t.Passphrase("Passphrase: ")
	if err != nil {
		return nil, err
	}
	if len([]rune(string(first))) < humankey.MinPassphrase {
		return nil, fmt.Errorf("the passphrase is too short: at least %d characters", humankey.MinPassphrase)
	}
	second, err := t.Passphrase("Passphrase again: ")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		return nil, errors.New("the two passphrases differ")
	}
	return first, nil
}
