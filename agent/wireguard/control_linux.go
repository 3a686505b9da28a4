package wireguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// errNoControl: the interface is no WireGuard device, or the process behind it is gone.
var errNoControl = errors.New("no WireGuard device answers")

// answerTimeout is how long a device may take to answer. wgctrl knows no deadlines, and a stopped process would hold
// its caller for ever.
const answerTimeout = 3 * time.Second

// control speaks to devices through wgctrl, one call at a time for each device: a call that was given up keeps its
// device's turn until it returns, so that no more than one waits for a process that is stuck.
type control struct {
	mu    sync.Mutex
	turns map[string]chan struct{}
}

func newControl() *control { return &control{turns: map[string]chan struct{}{}} }

func (c *control) turn(name string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns[name] == nil {
		c.turns[name] = make(chan struct{}, 1)
	}
	return c.turns[name]
}

// call runs one conversation. The client is opened for it: a driver that was loaded since is found, and nothing is
// kept open between.
func (c *control) call(ctx context.Context, name string, do func(*wgctrl.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	turn := c.turn(name)
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s is busy: %w", name, ctx.Err())
	}
	result := make(chan error, 1)
	go func() {
		defer func() { <-turn }()
		client, err := wgctrl.New()
		if err != nil {
			result <- fmt.Errorf("open wgctrl: %w", err)
			return
		}
		err = do(client)
		_ = client.Close()
		result <- err
	}()
	select {
	case err := <-result:
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) { // refused: a stale socket
			return errNoControl
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s does not answer: %w", name, ctx.Err())
	}
}

func (c *control) read(ctx context.Context, name string) (device, error) {
	var d device
	err := c.call(ctx, name, func(client *wgctrl.Client) error {
		got, err := client.Device(name) // by name: one stale socket makes Devices fail as a whole
		if err == nil {
			d = fromControl(got)
		}
		return err
	})
	if err != nil {
		return device{}, err
	}
	return d, nil
}

func fromControl(got *wgtypes.Device) device {
	d := device{Name: got.Name, PublicKey: got.PublicKey, ListenPort: got.ListenPort}
	for _, p := range got.Peers {
		w := peer{Key: p.PublicKey, Keepalive: p.PersistentKeepaliveInterval, Handshake: p.LastHandshakeTime, RX: p.ReceiveBytes, TX: p.TransmitBytes}
		if w.Handshake.Unix() <= 0 {
			w.Handshake = time.Time{}
		}
		if p.Endpoint != nil {
			e := p.Endpoint.AddrPort()
			w.Endpoint = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
		}
		for _, a := range p.AllowedIPs {
			if prefix, ok := toPrefix(&a); ok {
				w.AllowedIPs = append(w.AllowedIPs, netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()))
			}
		}
		w.AllowedIPs = sortedPrefixes(w.AllowedIPs)
		d.Peers = append(d.Peers, w)
	}
	slices.SortFunc(d.Peers, func(a, b peer) int { return cmp.Compare(string(a.Key[:]), string(b.Key[:])) })
	return d
}

func (c *control) configure(ctx context.Context, name string, change configuration) error {
	cfg := wgtypes.Config{PrivateKey: change.PrivateKey, ListenPort: change.ListenPort}
	for _, p := range change.Peers {
		pc := wgtypes.PeerConfig{
			PublicKey: p.Key, Remove: p.Remove, UpdateOnly: !p.Add && !p.Remove,
			PersistentKeepaliveInterval: p.Keepalive, ReplaceAllowedIPs: p.Replace,
		}
		if p.Endpoint.IsValid() {
			pc.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint)
		}
		for _, a := range p.AllowedIPs {
			pc.AllowedIPs = append(pc.AllowedIPs, *toIPNet(a))
		}
		cfg.Peers = append(cfg.Peers, pc)
	}
	return c.call(ctx, name, func(client *wgctrl.Client) error { return client.ConfigureDevice(name, cfg) })
}
