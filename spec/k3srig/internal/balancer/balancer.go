// Package balancer is an agent's way to the servers: a port on the loopback
// interface from which connections go to whichever server answers.
package balancer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"powernode/spec/k3srig/internal/pki"
)

const dialTimeout = 3 * time.Second

// Balancer forwards connections.
type Balancer struct {
	listener net.Listener
	file     string
	origin   string // the address of the configuration, tried last

	mu      sync.Mutex
	servers []string
	conns   map[net.Conn]string
}

type state struct {
	ServerURL       string
	ServerAddresses []string
}

// Start listens on address and forwards to origin, or to the servers that an
// earlier run has written to file.
func Start(ctx context.Context, address, origin, file string) (*Balancer, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the client load balancer: %w", err)
	}
	b := &Balancer{listener: l, file: file, origin: origin, conns: map[net.Conn]string{}}
	if raw, err := os.ReadFile(file); err == nil {
		var s state
		// A list for another cluster's address, or one that can't be read, is of no use.
		if json.Unmarshal(raw, &s) == nil && s.ServerURL == "https://"+origin {
			b.servers = s.ServerAddresses
		}
	}
	context.AfterFunc(ctx, func() {
		l.Close()
		b.mu.Lock()
		defer b.mu.Unlock()
		for c := range b.conns {
			c.Close()
		}
	})
	go b.accept(ctx)
	return b, nil
}

// URL is what the agent's clients use.
func (b *Balancer) URL() string { return "https://" + b.listener.Addr().String() }

// Update sets the servers and ends connections to those that are gone.
func (b *Balancer) Update(servers []string) error {
	if len(servers) == 0 {
		return nil // nothing was learned; forgetting every server would cut the agent off
	}
	servers = slices.Clone(servers)
	slices.Sort(servers)
	b.mu.Lock()
	if slices.Equal(servers, b.servers) {
		b.mu.Unlock()
		return nil
	}
	slog.Info("Updated load balancer server addresses", "servers", servers)
	b.servers = servers
	for c, server := range b.conns {
		if server != b.origin && !slices.Contains(servers, server) {
			c.Close()
		}
	}
	b.mu.Unlock()
	raw, err := json.MarshalIndent(state{ServerURL: "https://" + b.origin, ServerAddresses: servers}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode load balancer state: %w", err)
	}
	return pki.WriteFile(b.file, raw, 0o600)
}

func (b *Balancer) accept(ctx context.Context) {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return // closed with ctx
		}
		go b.forward(ctx, c)
	}
}

func (b *Balancer) candidates() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.Clone(b.servers)
	if !slices.Contains(list, b.origin) {
		list = append(list, b.origin)
	}
	return list
}

func (b *Balancer) forward(ctx context.Context, in net.Conn) {
	defer in.Close()
	d := net.Dialer{Timeout: dialTimeout}
	for _, server := range b.candidates() {
		out, err := d.DialContext(ctx, "tcp", server)
		if err != nil {
			slog.Debug("server doesn't answer", "server", server, "err", err)
			continue
		}
		b.track(out, server)
		b.pipe(in, out)
		b.untrack(out)
		return
	}
}

func (b *Balancer) track(c net.Conn, server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = server
}

func (b *Balancer) untrack(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

func (b *Balancer) pipe(in, out net.Conn) {
	defer out.Close()
	done := make(chan struct{}, 2)
	cp := func(dst, src net.Conn) {
		// An error here is the end of a connection, which the other direction sees too.
		_, _ = io.Copy(dst, src)
		dst.Close()
		done <- struct{}{}
	}
	go cp(out, in)
	go cp(in, out)
	<-done
}
