package wireguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long changes are collected before they count as one.
	settle = 20 * time.Millisecond
	// quiet is the least time between two signals: a host whose routes change all the time costs two looks a second.
	quiet = 500 * time.Millisecond
	// nftTable is the table whose changes matter; others change theirs often.
	nftTable = "powernode"
)

// Watch signals when links, addresses, routes or our nftables table change, by whomever: what somebody took away is
// back at once instead of at the next tick. The agent's own writes signal too, which costs one look that finds nothing
// to do. The channel has room for one signal and is closed when ctx ends.
func Watch(ctx context.Context, log zerolog.Logger) (<-chan struct{}, error) {
	const routeGroups = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1) |
		1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1)
	route, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: routeGroups})
	if err != nil {
		return nil, fmt.Errorf("watch links, addresses and routes: %w", err)
	}
	nft, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		log.Warn().Err(err).Msg("changes of the firewall are noticed at the next tick only")
	}
	raw := make(chan struct{}, 1)
	var readers sync.WaitGroup
	readers.Go(func() { receive(ctx, route, raw, func(netlink.Message) bool { return true }) })
	if nft != nil {
		readers.Go(func() { receive(ctx, nft, raw, ofOurTable) })
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		coalesce(ctx, raw, out)
		_ = route.Close()
		if nft != nil {
			_ = nft.Close()
		}
		readers.Wait()
	}()
	return out, nil
}

// receive passes on that something matched came in, until its socket is closed.
func receive(ctx context.Context, c *netlink.Conn, raw chan<- struct{}, match func(netlink.Message) bool) {
	for ctx.Err() == nil {
		msgs, err := c.Receive()
		matched := errors.Is(err, unix.ENOBUFS) // an overflow means: look at everything
		if err != nil && !matched {
			return
		}
		for _, m := range msgs {
			matched = matched || match(m)
		}
		if matched {
			offer(raw)
		}
	}
}

func offer(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ofOurTable holds for every object of nftables: its first attribute's type, 1, is the table's name.
func ofOurTable(m netlink.Message) bool {
	const generation = unix.NFT_MSG_NEWGEN
	if len(m.Data) < 4 || uint16(m.Header.Type)&0xff == generation {
		return false
	}
	attrs, err := netlink.UnmarshalAttributes(m.Data[4:])
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Type == 1 {
			return string(bytes.TrimRight(a.Data, "\x00")) == nftTable
		}
	}
	return false
}

// coalesce makes one signal of many, and leaves at least quiet between two.
func coalesce(ctx context.Context, raw <-chan struct{}, out chan<- struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-raw:
		}
		timer.Reset(max(settle, quiet-time.Since(last)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select { // what came in meanwhile is in this signal
		case <-raw:
		default:
		}
		last = time.Now()
		offer(out)
	}
}
