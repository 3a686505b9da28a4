package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"powernode/agent/atomicfile"
	"powernode/agent/wireguard"
	"powernode/sdwan"
)

// firstDevice is the interface of the first file that is up; nodes count from 1 upwards, devices of persons from here
// downwards.
const firstDevice = 9999

// active is a file that is up. Interface and port stay as long as it is.
type active struct {
	DeviceName string `json:"device_name"`
	ListenPort int    `json:"listen_port"`
}

// Up makes the machine what the file says, with the code that makes nodes' interfaces; again is success.
func Up(ctx context.Context, o Options, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	c, err := parseConfig(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s := store{filepath.Join(o.StateDir, "device")}
	all, err := s.read()
	if err != nil {
		return err
	}
	id := networkID(path)
	if _, ok := all[id]; !ok {
		if all[id], err = choose(all, c.listenPort); err != nil {
			return err
		}
		if err := s.write(all); err != nil {
			return err
		}
	}
	if err := s.writeKey(id, c.privateKey.String()); err != nil {
		return err
	}
	return s.apply(ctx, o, id, document(id, all[id], c))
}

// Down takes it away again; what isn't up is success.
func Down(ctx context.Context, o Options, path string) error {
	s := store{filepath.Join(o.StateDir, "device")}
	all, err := s.read()
	if err != nil {
		return err
	}
	id := networkID(path)
	if _, ok := all[id]; !ok {
		return nil
	}
	if err := s.apply(ctx, o, id, &sdwan.Document{}); err != nil {
		return err
	}
	delete(all, id)
	if err := os.RemoveAll(s.networkDir(id)); err != nil {
		return fmt.Errorf("forget %s: %w", path, err)
	}
	return s.write(all)
}

// networkID names a file's state: the file's name without its end.
func networkID(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".conf")
}

// choose takes the highest interface name that no other file has, and a port that is free now.
func choose(all map[string]active, port int) (active, error) {
	used := map[string]bool{}
	for _, a := range all {
		used[a.DeviceName] = true
	}
	a := active{ListenPort: port}
	for n := firstDevice; n > 0; n-- {
		if name := fmt.Sprintf("wg-sdwan-%d", n); !used[name] {
			a.DeviceName = name
			break
		}
	}
	if port != 0 {
		return a, nil
	}
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return a, fmt.Errorf("find a free port: %w", err)
	}
	defer c.Close()
	a.ListenPort = int(c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	return a, nil
}

// document says the configuration in the words of a node's: one interface, a route for each allowed prefix.
func document(id string, a active, c config) *sdwan.Document {
	n := sdwan.Network{NetworkID: id, DeviceName: a.DeviceName, ListenPort: a.ListenPort, MTU: c.mtu, Forward: "off",
		Key: sdwan.KeyState{State: "current"}, Peers: c.peers}
	if n.MTU == 0 {
		n.MTU = 1420
	}
	source := map[bool]netip.Addr{} // by: is IPv6
	for _, p := range c.addresses {
		addr := p.Addr().Unmap()
		n.Addresses = append(n.Addresses, netip.PrefixFrom(addr, addr.BitLen()))
		if !source[addr.Is6()].IsValid() {
			source[addr.Is6()] = addr
		}
		if addr.Is6() && !n.CIDR.IsValid() {
			n.CIDR = netip.PrefixFrom(addr, 64).Masked()
		}
	}
	for _, p := range c.peers {
		for _, allowed := range p.AllowedIPs {
			n.Routes = append(n.Routes, sdwan.Route{Prefix: allowed, Source: nearest(c.addresses, allowed, source[allowed.Addr().Is6()])})
		}
	}
	return &sdwan.Document{Networks: []sdwan.Network{n}}
}

// nearest is the own address inside a prefix: a device has one in each network, and answers come back to it.
func nearest(own []netip.Prefix, to netip.Prefix, otherwise netip.Addr) netip.Addr {
	for _, p := range own {
		if to.Contains(p.Addr()) {
			return p.Addr()
		}
	}
	return otherwise
}

// store keeps which files are up, and for each what package wireguard keeps of an interface.
type store struct{ dir string }

func (s store) networkDir(id string) string { return filepath.Join(s.dir, "up", id) }

func (s store) read() (map[string]active, error) {
	all := map[string]active{}
	b, err := os.ReadFile(filepath.Join(s.dir, "active.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is up: %w", err)
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read what is up: %w", err)
	}
	return all, nil
}

func (s store) write(all map[string]active) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the device's directory: %w", err)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode what is up: %w", err)
	}
	return atomicfile.Write(filepath.Join(s.dir, "active.json"), b, 0o600)
}

// writeKey puts the key where package wireguard looks for a network's.
func (s store) writeKey(id, key string) error {
	dir := filepath.Join(s.networkDir(id), "keys")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the key's directory: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, id), []byte(key+"\n"), 0o600)
}

func (s store) apply(ctx context.Context, o Options, id string, doc *sdwan.Document) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the agent's program: %w", err)
	}
	w := wireguard.New(wireguard.Options{StateDir: s.networkDir(id), AgentBinary: program, Log: o.Log})
	if err := w.Reconcile(ctx, doc); err != nil {
		return fmt.Errorf("apply the configuration: %w", err)
	}
	return nil
}
