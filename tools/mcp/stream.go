package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxMessage bounds one message; arguments are bounded lower, by the contract.
const maxMessage = 8 << 20

// Message is one message of a client. CallID names a call that may be sent again; it comes back with the answer. Fresh
// says that nothing was ever sent under it before.
type Message struct {
	CallID string
	Fresh  bool
	Raw    []byte
}

// Stream is one client's connection. Receive is called by one goroutine and ends with io.EOF; Send by one at a time. Every
// received message is answered by one Send under its call id: nil where the protocol has no answer. What no message asked
// for is sent without a call id.
type Stream interface {
	Receive() (Message, error)
	Send(callID string, answer []byte) error
}

// Lines is a stream of lines, as MCP's stdio has them. The last line needs no line feed.
func Lines(r io.Reader, w io.Writer) Stream {
	return &lines{in: bufio.NewReaderSize(r, 64<<10), out: w}
}

type lines struct {
	in  *bufio.Reader
	mu  sync.Mutex
	out io.Writer
}

func (l *lines) Receive() (Message, error) {
	for {
		line, err := ReadLine(l.in)
		if len(line) > 0 {
			return Message{Raw: line}, nil // an error comes again
		}
		if err != nil {
			return Message{}, err
		}
	}
}

func (l *lines) Send(_ string, answer []byte) error {
	if answer == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.out.Write(append(answer, '\n')); err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	return nil
}

// ReadLine reads one line without its line feed and the white space around; empty lines are the caller's to skip. Of a
// line longer than a message may be, it keeps what shows that, and no more.
func ReadLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if keep := maxMessage + 1 - len(line); keep > 0 {
			line = append(line, part[:min(len(part), keep)]...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimSpace(line), err
	}
}

func tooLarge() *ProtocolError {
	return invalidRequest("a message has at most %d MiB", maxMessage>>20)
}
