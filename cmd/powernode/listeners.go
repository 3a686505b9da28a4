package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"powernode/agent/atomicfile"
	"powernode/nodeapi"
	"powernode/platform/fleet"
	"powernode/platform/provider/local"
)

// listeners are the agents' API on the addresses that machines reach. They are opened when the first machine or device
// needs one, are recorded in the state directory, and stay the same across restarts.
type listeners struct {
	file      string // the record
	namedFile string // the record of those that the operator names for machines elsewhere
	provider  *local.Provider
	authority *fleet.Authority
	handler   http.Handler
	log       zerolog.Logger
	opened    func(context.Context) error // after the first was opened

	mu      sync.Mutex
	serving []netip.AddrPort
	named   []netip.AddrPort
	servers []*http.Server
	running sync.WaitGroup
}

// resume opens what was open before a restart.
func (l *listeners) resume(ctx context.Context) error {
	raw, err := os.ReadFile(l.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the agent API's addresses: %w", err)
	}
	var recorded []netip.AddrPort
	if err := json.Unmarshal(raw, &recorded); err != nil {
		return fmt.Errorf("read the agent API's addresses from %s: %w", l.file, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, address := range recorded {
		if !address.Addr().IsLoopback() {
			if _, err := l.provider.AgentAPIAddress(ctx); err != nil {
				return fmt.Errorf("bring the machines' network up again: %w", err)
			}
		}
		if err := l.open(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

// urls are where agents find the platform; it opens the first listener. It reaches outside: never call it in a
// transaction.
func (l *listeners) urls() []string {
	if err := l.ensure(); err != nil {
		l.log.Error().Err(err).Msg("agent API not opened")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	urls := make([]string, len(l.serving))
	for i, address := range l.serving {
		urls[i] = "https://" + address.String()
	}
	return urls
}

// ensure opens the first listener, once. Without root there are no machines here: then it is on loopback.
func (l *listeners) ensure() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l.mu.Lock()
	if len(l.serving) > 0 {
		l.mu.Unlock()
		return nil
	}
	err := l.first(ctx)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.opened(ctx)
}

// addresses are those that stand; it opens none.
func (l *listeners) addresses() []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(slices.Clone(l.named), l.serving...)
}

// url is the first address that stands, for links: one that is reached from elsewhere where there is one; "" while there is
// none.
func (l *listeners) url() string {
	if standing := l.addresses(); len(standing) > 0 {
		return "https://" + standing[0].String()
	}
	return ""
}

// first opens a listener and records it. The port is the system's choice, once.
func (l *listeners) first(ctx context.Context) error {
	address := netip.IPv6Loopback()
	if os.Geteuid() == 0 {
		var err error
		if address, err = l.provider.AgentAPIAddress(ctx); err != nil {
			return err
		}
	}
	if err := l.open(ctx, netip.AddrPortFrom(address, 0)); err != nil {
		return err
	}
	raw, err := json.Marshal(l.serving)
	if err != nil {
		return err
	}
	return atomicfile.Write(l.file, raw, 0o600)
}

func (l *listeners) open(ctx context.Context, address netip.AddrPort) error {
	bound, err := l.listen(ctx, address, nil)
	if err == nil {
		l.serving = append(l.serving, bound)
	}
	return err
}

// listen serves the agent API at an address, and answers it with its port. control sets the socket up; nil: nothing to set.
func (l *listeners) listen(ctx context.Context, address netip.AddrPort, control func(string, string, syscall.RawConn) error) (netip.AddrPort, error) {
	certificate, err := l.authority.ServerCertificate([]netip.Addr{address.Addr()})
	if err != nil {
		return address, fmt.Errorf("certify the agent API at %s: %w", address, err)
	}
	config := net.ListenConfig{Control: control}
	listener, err := config.Listen(ctx, "tcp", address.String())
	if err != nil {
		return address, fmt.Errorf("open the agent API: %w", err)
	}
	bound, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		return address, errors.Join(fmt.Errorf("read the agent API's address: %w", err), listener.Close())
	}
	server := &http.Server{Handler: l.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		TLSConfig: nodeapi.ServerTLS(certificate, l.authority.Pool()), ErrorLog: quiet(l.log)}
	l.servers = append(l.servers, server)
	l.running.Add(1)
	go func() {
		defer l.running.Done()
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error().Err(err).Stringer("address", bound).Msg("agent API ended")
		}
	}()
	l.log.Info().Stringer("address", bound).Msg("agent API listens")
	return bound, nil
}

// close ends all listeners; long polls are cut off, agents ask again.
func (l *listeners) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, server := range l.servers {
		errs = append(errs, server.Close())
	}
	l.running.Wait()
	return errors.Join(errs...)
}
