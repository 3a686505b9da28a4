package rig

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Stdio is powernode mcp as a client's child process, spoken to in lines of its own: what no client library would send.
type Stdio struct {
	Process *exec.Cmd

	in   io.WriteCloser
	out  *bufio.Reader
	said bytes.Buffer // on stderr
}

// Answer is one line of a bridge's stdout.
type Answer struct {
	Line   []byte
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result *ToolResult     `json:"result"`
	Error  *ProtocolError  `json:"error"`
}

// ToolResult is the result of tools/call.
type ToolResult struct {
	IsError           bool            `json:"isError"`
	StructuredContent json.RawMessage `json:"structuredContent"`
	Content           []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"content"`
}

// ProtocolError is what JSON-RPC answers to what is no call.
type ProtocolError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Stdio starts powernode mcp. Wait ends it; so does the end of the context.
func (i *Installation) Stdio(ctx context.Context, args ...string) (*Stdio, error) {
	b := &Stdio{Process: i.Command(ctx, append([]string{"mcp"}, args...)...)}
	b.Process.Stderr = &b.said
	in, err := b.Process.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := b.Process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.in, b.out = in, bufio.NewReaderSize(out, 1<<20)
	if err := b.Process.Start(); err != nil {
		return nil, fmt.Errorf("start powernode mcp: %w", err)
	}
	return b, nil
}

// Write sends bytes as they are.
func (b *Stdio) Write(p []byte) (int, error) { return b.in.Write(p) }

// End is the end of input.
func (b *Stdio) End() error { return b.in.Close() }

// Answer reads the next line of stdout; io.EOF is its end. What is no JSON-RPC is an error.
func (b *Stdio) Answer() (Answer, error) {
	line, err := b.out.ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return Answer{}, io.EOF
	}
	if err != nil {
		return Answer{}, fmt.Errorf("stdout ended within a line: %.200q: %w", line, err)
	}
	a := Answer{Line: line}
	return a, a.read()
}

// read holds a line against the protocol: one JSON object of version 2.0 with its declared members alone, which is an
// answer with either result or error, or a notification.
func (a *Answer) read() error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(a.Line, &members); err != nil {
		return fmt.Errorf("stdout carries something else than the protocol: %.200q: %w", a.Line, err)
	}
	for key := range members {
		switch key {
		case "jsonrpc", "id", "method", "params", "result", "error":
		default:
			return fmt.Errorf("an answer has the member %q: %.200q", key, a.Line)
		}
	}
	_, hasID := members["id"]
	_, result := members["result"]
	_, failed := members["error"]
	_, method := members["method"]
	switch {
	case string(members["jsonrpc"]) != `"2.0"`:
		return fmt.Errorf("an answer has jsonrpc %s: %.200q", members["jsonrpc"], a.Line)
	case method == hasID, !method && result == failed, method && (result || failed):
		return fmt.Errorf("a line is neither an answer nor a notification: %.200q", a.Line)
	}
	if err := json.Unmarshal(a.Line, a); err != nil {
		return fmt.Errorf("read an answer: %.200q: %w", a.Line, err)
	}
	return nil
}

// Refusal is a verb's error in an answer; nil: it is none.
func (a Answer) Refusal() (*Refusal, error) {
	if a.Result == nil || !a.Result.IsError {
		return nil, nil
	}
	if len(a.Result.Content) != 1 || a.Result.StructuredContent != nil {
		return nil, fmt.Errorf("an error has one text and no structured content: %.400q", a.Line)
	}
	r := &Refusal{}
	if err := json.Unmarshal([]byte(a.Result.Content[0].Text), r); err != nil {
		return nil, fmt.Errorf("read the error %.400q: %w", a.Result.Content[0].Text, err)
	}
	return r, nil
}

// Wait waits for the bridge's end after the end of input. An error carries what it said.
func (b *Stdio) Wait() error {
	if err := b.Process.Wait(); err != nil {
		return fmt.Errorf("powernode mcp: %w: %s", err, b.said.String())
	}
	return nil
}

// ServePID is the process that serves the state directory; 0: none does now.
func (i *Installation) ServePID() int {
	raw, err := os.ReadFile(filepath.Join(i.Dir, "serve.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return 0
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !bytes.Contains(line, []byte("serve\x00")) || !bytes.Contains(line, []byte(i.Dir+"\x00")) {
		return 0 // ended; the number may be another's by now
	}
	return pid
}
