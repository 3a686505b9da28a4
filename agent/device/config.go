package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/sdwan"
)

// config is a WireGuard configuration as far as a device's goes.
type config struct {
	privateKey wgtypes.Key
	addresses  []netip.Prefix
	listenPort int // 0: any
	mtu        int // 0: 1420
	peers      []sdwan.Peer
}

// parseConfig reads it. What isn't known is refused: a line that does nothing would be a lie, one that runs a command
// a danger.
func parseConfig(text string) (config, error) {
	var c config
	section, n := "", 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case strings.EqualFold(line, "[Interface]"):
			section = "interface"
			continue
		case strings.EqualFold(line, "[Peer]"):
			section = "peer"
			c.peers = append(c.peers, sdwan.Peer{PeerID: fmt.Sprintf("peer-%d", len(c.peers)+1), Kind: "peer"})
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || section == "" {
			return c, fmt.Errorf("line %d is no KEY = VALUE in a section", n)
		}
		if err := c.set(section, strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
			return c, fmt.Errorf("line %d: %s: %w", n, strings.TrimSpace(key), err)
		}
	}
	return c, c.check()
}

func (c *config) set(section, key, value string) (err error) {
	if section == "peer" {
		return setPeer(&c.peers[len(c.peers)-1], strings.ToLower(key), value)
	}
	switch strings.ToLower(key) {
	case "privatekey":
		if c.privateKey, err = wgtypes.ParseKey(value); err != nil {
			return errors.New("is no WireGuard key")
		}
	case "address":
		c.addresses, err = appendPrefixes(c.addresses, value)
	case "listenport":
		c.listenPort, err = number(value, 0, 65535)
	case "mtu":
		c.mtu, err = number(value, 1280, 65535)
	default:
		err = errors.New("is not taken by powernode-agent")
	}
	return err
}

func setPeer(p *sdwan.Peer, key, value string) (err error) {
	switch key {
	case "publickey":
		if _, err := wgtypes.ParseKey(value); err != nil {
			return errors.New("is no WireGuard key")
		}
		p.PublicKey = value
	case "allowedips":
		p.AllowedIPs, err = appendPrefixes(p.AllowedIPs, value)
	case "endpoint":
		return setEndpoint(p, value)
	case "persistentkeepalive":
		if value != "off" {
			p.KeepaliveSeconds, err = number(value, 0, 65535)
		}
	default:
		err = errors.New("is not taken by powernode-agent")
	}
	return err
}

func setEndpoint(p *sdwan.Peer, value string) error {
	if ap, err := netip.ParseAddrPort(value); err == nil {
		p.Endpoints = append(p.Endpoints, ap)
		return nil
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return errors.New("is no HOST:PORT")
	}
	p.EndpointHost = host
	p.EndpointPort, err = number(port, 1, 65535)
	return err
}

func appendPrefixes(list []netip.Prefix, value string) ([]netip.Prefix, error) {
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		if err != nil {
			a, aerr := netip.ParseAddr(part)
			if aerr != nil {
				return nil, fmt.Errorf("%q is no prefix", part)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		list = append(list, p)
	}
	return list, nil
}

func number(value string, low, high int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("must be %d..%d", low, high)
	}
	return n, nil
}

func (c *config) check() error {
	if c.privateKey == (wgtypes.Key{}) {
		return errors.New("no PrivateKey")
	}
	if len(c.addresses) == 0 {
		return errors.New("no Address")
	}
	for _, p := range c.peers {
		if p.PublicKey == "" {
			return fmt.Errorf("%s has no PublicKey", p.PeerID)
		}
	}
	return nil
}
