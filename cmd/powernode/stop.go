package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// stopBound is how long the end of serve is waited for: calls in flight are finished first.
const stopBound = 100 * time.Second

func stopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "End the control plane of the state directory and wait for its end",
		Long: "End the control plane of the state directory and wait for its end. Calls in flight are finished first. Machines,\n" +
			"their agents and their tunnels go on. A session of an assistant that calls again starts it again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := standingStateDir(cmd)
			if err != nil {
				return err
			}
			stopped, err := stopServe(cmd.Context(), dir)
			if err != nil {
				return err
			}
			if !stopped {
				fmt.Fprintln(cmd.OutOrStdout(), "not running")
				return nil
			}
			fmt.Fprintln(cmd.OutOrStdout(), "stopped")
			return nil
		},
	}
}

// stopServe ends the process that listens on the socket, by the kernel's word of who that is. It waits for the end.
func stopServe(ctx context.Context, dir stateDir) (stopped bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, stopBound)
	defer cancel()
	conn, peer, err := dialControl(ctx, dir)
	if err != nil {
		if !absent(err) {
			return false, err
		}
		if serveHolds(dir) {
			return false, errors.New("a control plane is starting or ending: try again in a moment")
		}
		return false, nil
	}
	fd, err := unix.PidfdOpen(int(peer.Pid), 0)
	err = errors.Join(err, conn.Close()) // it was open until here: the process id is no other's
	if err != nil {
		return false, fmt.Errorf("find the control plane's process: %w", err)
	}
	defer unix.Close(fd) // nothing was written
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return false, fmt.Errorf("end the control plane: %w", err)
	}
	return true, awaitEnd(ctx, fd)
}

// awaitEnd waits until the process of a pidfd has ended.
func awaitEnd(ctx context.Context, fd int) error {
	for {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 100)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for the control plane's end: %w", err)
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the control plane has not ended after %s: calls are still running", stopBound)
		}
	}
}

// lastOf is the last line of a text that says something.
func lastOf(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
