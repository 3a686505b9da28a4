package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Capture is a capture of what passes an interface of this host.
type Capture struct {
	iface  string
	stream *Stream
	file   *os.File
}

// What a capture keeps of a packet (more than the underlay's MTU) and the room for packets that tcpdump has not taken yet.
const (
	snapshotBytes = "2048"
	ringKiB       = "16384"
)

// marker is sent last, so that all before it has been written when it has; it goes to the discard port.
const marker = "powernode-spec-capture-ends"

// StartCapture captures an interface into a file in dir and waits until it does.
func StartCapture(ctx context.Context, iface, dir string) (*Capture, error) {
	file, err := os.Create(filepath.Join(dir, iface+".pcap"))
	if err != nil {
		return nil, err
	}
	// The kernel's ring has room for as many packets as slots of the snapshot's length fit into it: a burst that comes while
	// tcpdump is not scheduled must fit, too.
	cmd := exec.CommandContext(ctx, "tcpdump", "-i", iface, "-n", "-U", "--immediate-mode", "-s", snapshotBytes, "-B", ringKiB, "-w", "-", "-Z", "root")
	// tcpdump says on stderr that it listens; the packets go to the file.
	ready, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = file
	s, err := startReading(cmd, ready)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	c := &Capture{iface: iface, stream: s, file: file}
	err = s.Await(ctx, "tcpdump on "+iface, 10*time.Second, func(lines []string) string {
		if !strings.Contains(strings.Join(lines, "\n"), "listening on") {
			return fmt.Sprint("it says ", lines)
		}
		return ""
	})
	return c, err
}

// Stop ends the capture and answers its packets: a line of text each, and the raw bytes of the file.
func (c *Capture) Stop(ctx context.Context) (lines []string, raw []byte, err error) {
	if err := c.mark(ctx); err != nil {
		return nil, nil, err
	}
	said, err := c.stream.Interrupt()
	if err != nil {
		return nil, nil, err
	}
	if end := strings.Join(said, "\n"); !strings.Contains(end, "\n0 packets dropped by kernel") {
		return nil, nil, fmt.Errorf("the capture of %s is not whole: %s", c.iface, end)
	}
	if err := c.file.Close(); err != nil {
		return nil, nil, err
	}
	if raw, err = os.ReadFile(c.file.Name()); err != nil {
		return nil, nil, err
	}
	text, err := output(exec.CommandContext(ctx, "tcpdump", "-r", c.file.Name(), "-n", "-t", "-q"))
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if !strings.Contains(line, "ff02::1.9:") {
			lines = append(lines, line)
		}
	}
	return lines, raw, err
}

func (c *Capture) mark(ctx context.Context) error {
	conn, err := net.Dial("udp6", "[ff02::1%"+c.iface+"]:9")
	if err != nil {
		return err
	}
	defer conn.Close()
	return Await(ctx, "the capture's last packet", 10*time.Second, func(context.Context) (string, error) {
		if _, err := conn.Write([]byte(marker)); err != nil {
			return "", err
		}
		written, err := os.ReadFile(c.file.Name())
		if err != nil || bytes.Contains(written, []byte(marker)) {
			return "", err
		}
		return "it is not in the file", nil
	})
}
