package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Bridge and serve exchange frames: a line "ID LENGTH", then LENGTH bytes that nobody looks into. A client's message
// goes one way under its call id; one frame with the same id comes back when it is dealt with, empty where the protocol
// has no answer to it.

// maxMessage bounds one message of a client; arguments alone are bounded far lower.
const maxMessage = 8 << 20

// maxFrame bounds what comes back.
const maxFrame = 64 << 20

// noteID is the id of a frame that answers no message.
const noteID = "-"

type frame struct {
	id      string
	message []byte
}

func writeFrame(w io.Writer, f frame) error {
	head := f.id + " " + strconv.Itoa(len(f.message)) + "\n"
	if _, err := io.WriteString(w, head); err != nil {
		return fmt.Errorf("write a frame: %w", err)
	}
	if _, err := w.Write(f.message); err != nil {
		return fmt.Errorf("write a frame: %w", err)
	}
	return nil
}

// readFrame reads one frame; io.EOF stands for an end between two frames alone.
func readFrame(r *bufio.Reader) (frame, error) {
	head, err := r.ReadString('\n')
	if errors.Is(err, io.EOF) && head != "" {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return frame{}, err
	}
	id, length, ok := strings.Cut(strings.TrimSuffix(head, "\n"), " ")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n > maxFrame {
		return frame{}, fmt.Errorf("read a frame: its head is %.80q", head)
	}
	f := frame{id: id, message: make([]byte, n)}
	if _, err := io.ReadFull(r, f.message); err != nil {
		return frame{}, fmt.Errorf("read a frame: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return f, nil
}
