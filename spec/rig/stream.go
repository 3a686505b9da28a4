package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// Stream is a program that goes on; its lines are kept as they come.
type Stream struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

// Stream starts a program inside a machine. It must have no children: it is killed alone.
func (i *Installation) Stream(ctx context.Context, machine string, argv ...string) (*Stream, error) {
	return StartStream(i.Command(ctx, append([]string{"local", "exec", machine, "--"}, argv...)...))
}

// StartStream starts a program of this host.
func StartStream(cmd *exec.Cmd) (*Stream, error) {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return startReading(cmd, stdout)
}

// startReading starts a program and keeps the lines of one of its outputs.
func startReading(cmd *exec.Cmd, lines io.Reader) (*Stream, error) {
	s := &Stream{cmd: cmd, ended: make(chan struct{})}
	return s, s.start(lines)
}

func (s *Stream) start(lines io.Reader) error {
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.cmd.Path, err)
	}
	go func() {
		defer close(s.ended)
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, scanner.Text())
			s.mu.Unlock()
		}
	}()
	return nil
}

// Lines are those so far.
func (s *Stream) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

// Await waits until the lines are as they should be. ask says what is missing, or "".
func (s *Stream) Await(ctx context.Context, what string, limit time.Duration, ask func(lines []string) string) error {
	return Await(ctx, what, limit, func(context.Context) (string, error) {
		missing := ask(s.Lines())
		select {
		case <-s.ended:
			if missing != "" {
				return "", errors.New("the program ended; " + missing)
			}
		default:
		}
		return missing, nil
	})
}

// Close kills the program and waits for its end.
func (s *Stream) Close() error { return s.end(os.Kill) }

// Interrupt asks the program to end, waits for it, and answers its lines.
func (s *Stream) Interrupt() ([]string, error) {
	err := s.end(os.Interrupt)
	return s.Lines(), err
}

func (s *Stream) end(signal os.Signal) error {
	if err := s.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	_ = s.cmd.Wait() // it was told to end: its exit says nothing
	return nil
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}
