package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path that an address of a unix socket holds (108 bytes with its final zero).
const maxSocketPath = 107

// atSocket calls do with a path to the state directory's socket that fits into an address, however deep the directory
// lies: through an open descriptor of it, where its own path is too long.
func (d stateDir) atSocket(do func(path string) error) error {
	path := d.socketFile()
	if len(path) <= maxSocketPath {
		return do(path)
	}
	dir, err := os.OpenFile(string(d), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open the state directory: %w", err)
	}
	defer dir.Close() // nothing was written
	return do(fmt.Sprintf("/proc/self/fd/%d/control.sock", dir.Fd()))
}

// listenControl opens the socket, 0600. The caller holds the state directory's lock: a socket that is there is stale.
func listenControl(dir stateDir, log zerolog.Logger) (net.Listener, error) {
	if err := os.Remove(dir.socketFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the stale socket: %w", err)
	}
	var l *net.UnixListener
	err := dir.atSocket(func(path string) error {
		var err error
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return fmt.Errorf("open the control socket: %w", err)
		}
		l.SetUnlinkOnClose(false) // by its real path, by us
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return nil, err
	}
	return &ownListener{UnixListener: l, log: log}, nil
}

// dialControl connects to the serve of a state directory, and makes sure that it is ours or root's.
func dialControl(ctx context.Context, dir stateDir) (*net.UnixConn, *unix.Ucred, error) {
	var conn *net.UnixConn
	err := dir.atSocket(func(path string) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		conn = c.(*net.UnixConn)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the control plane: %w", err)
	}
	peer, err := peerOf(conn)
	if err == nil && !ownPeer(peer) {
		err = fmt.Errorf("the control socket %s is served by another user", dir.socketFile())
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, peer, nil
}

// ownListener hands out connections of this user's and root's processes alone.
type ownListener struct {
	*net.UnixListener
	log zerolog.Logger
}

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(conn)
		if err == nil && ownPeer(peer) {
			return conn, nil
		}
		l.log.Warn().Err(err).Interface("peer", peer).Msg("connection of another user refused")
		conn.Close() // nothing was said on it
	}
}

func ownPeer(c *unix.Ucred) bool { return c.Uid == 0 || int(c.Uid) == os.Geteuid() }

// peerOf says who is at the other end of a unix connection, by the kernel's word.
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("ask for the peer: %w", err)
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) {
		cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, asked); err != nil {
		return nil, fmt.Errorf("ask for the peer: %w", err)
	}
	return cred, nil
}
