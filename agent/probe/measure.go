package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// connect tries a TCP connection. A refusal is an answer: somebody at the target sent it.
func connect(ctx context.Context, source, target netip.Addr, port int) (bool, error) {
	if !target.IsValid() || port < 1 || port > 65535 {
		return false, fmt.Errorf("%s port %d is no target", target, port)
	}
	var d net.Dialer
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(target, uint16(port)).String())
	if err == nil {
		_ = c.Close()
		return true, nil
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return true, nil
	}
	return false, notMeasured(err)
}

// Types of ICMPv6.
const (
	icmpUnreachable = 1
	icmpEchoRequest = 128
	icmpEchoReply   = 129
)

// echoEvery is how often a request is repeated: the first ones may be lost to a handshake.
const echoEvery = 250 * time.Millisecond

// echo sends ICMPv6 echo requests until one is answered, something says that the target can't be reached, or the time
// is up.
func echo(ctx context.Context, source, target netip.Addr) (bool, error) {
	if !target.IsValid() || !target.Is6() {
		return false, fmt.Errorf("%s is no IPv6 address", target)
	}
	local := ""
	if source.IsValid() {
		local = source.String()
	}
	c, err := new(net.ListenConfig).ListenPacket(ctx, "ip6:ipv6-icmp", local)
	if err != nil {
		return false, fmt.Errorf("open a raw socket at %q: %w", local, err)
	}
	defer c.Close()
	request := make([]byte, 16) // type, code, checksum (the kernel's), identifier, sequence, our mark
	request[0] = icmpEchoRequest
	if _, err := rand.Read(request[4:]); err != nil {
		return false, fmt.Errorf("make an identifier: %w", err)
	}
	deadline, _ := ctx.Deadline()
	buffer := make([]byte, 1500)
	for sequence := uint16(1); ; sequence++ {
		binary.BigEndian.PutUint16(request[6:], sequence)
		if _, err := c.WriteTo(request, &net.IPAddr{IP: target.AsSlice()}); err != nil {
			return false, notMeasured(err)
		}
		next := time.Now().Add(echoEvery)
		if !next.Before(deadline) {
			next = deadline
		}
		answered, final := await(c, next, target, request, buffer)
		if final || ctx.Err() != nil || next.Equal(deadline) {
			return answered, nil
		}
	}
}

// await reads until the answer to a request, or an error about it, comes in; final says that one did.
func await(c net.PacketConn, until time.Time, target netip.Addr, request, buffer []byte) (answered, final bool) {
	_ = c.SetReadDeadline(until)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return false, !errors.Is(err, os.ErrDeadlineExceeded)
		}
		m := buffer[:n]
		if n < 8 {
			continue
		}
		switch m[0] {
		case icmpEchoReply:
			a, ok := netip.AddrFromSlice(from.(*net.IPAddr).IP)
			if ok && a == target && n >= 16 && sameEcho(m, request) {
				return true, true
			}
		case icmpUnreachable: // 8 bytes, then the packet that it is about: an IPv6 header of 40, then ours
			if n >= 8+40+16 && m[8+40] == icmpEchoRequest && sameEcho(m[8+40:], request) {
				return false, true
			}
		}
	}
}

// sameEcho compares identifier and mark; any of the sequence counts.
func sameEcho(a, b []byte) bool {
	return string(a[4:6]) == string(b[4:6]) && string(a[8:16]) == string(b[8:16])
}

// notMeasured sorts errors of sending: what says that there is no way is a result (nil), everything else an error.
func notMeasured(err error) error {
	for _, e := range []error{
		unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ETIMEDOUT, unix.EACCES, unix.EPERM, // no route, or a rule of ours
		unix.ENOKEY, unix.EDESTADDRREQ, // no owner, or an owner without endpoint
		context.DeadlineExceeded, os.ErrDeadlineExceeded,
	} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
