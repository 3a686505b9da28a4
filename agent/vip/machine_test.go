package vip

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"powernode/internal/netnstest"
	"powernode/sdwan"
)

var (
	cidr      = netip.MustParsePrefix("fd5e:8a21:c0de:1::/64")
	virtualIP = netip.MustParsePrefix("fd5e:8a21:c0de:1::100/128")
)

func overlay(i int) netip.Prefix {
	return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd5e:8a21:c0de:1::1:%x", i)), 128)
}

// mesh makes the documents of a full mesh in which one node holds the virtual IP; without keys there are no peers.
func mesh(nodes []*node, keys []string, holder int, epoch int64) []*sdwan.Document {
	var docs []*sdwan.Document
	for i := range nodes {
		n := sdwan.Network{
			NetworkID: "network", DeviceName: "wg-sdwan-1", CIDR: cidr, Addresses: []netip.Prefix{overlay(i)},
			ListenPort: 51820, MTU: 1420, Routes: []sdwan.Route{{Prefix: cidr, Source: overlay(i).Addr()}},
		}
		for j, other := range nodes {
			if i == j || len(keys) == 0 {
				continue
			}
			p := sdwan.Peer{PeerID: fmt.Sprint(j), PublicKey: keys[j], AllowedIPs: []netip.Prefix{overlay(j)},
				Endpoints: []netip.AddrPort{netip.AddrPortFrom(other.Address, 51820)}}
			if j == holder {
				p.AllowedIPs = append(p.AllowedIPs, virtualIP)
			}
			n.Peers = append(n.Peers, p)
		}
		if i == holder {
			n.VIPs = []sdwan.VIP{{VirtualIPID: "vip", Address: virtualIP, Epoch: epoch}}
		}
		docs = append(docs, &sdwan.Document{Incarnation: "i", Networks: []sdwan.Network{n}})
	}
	return docs
}

func hasVIP(n *node) bool {
	return strings.Contains(n.Run("ip", "-6", "addr", "show", "dev", "wg-sdwan-1"), virtualIP.Addr().String()+"/128")
}

func TestAVirtualIPMovesWithItsTraffic(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	nodes := []*node{newNode(t, s, "a"), newNode(t, s, "b"), newNode(t, s, "c")}
	var keys []string
	for i, d := range mesh(nodes, nil, -1, 0) {
		keys = append(keys, nodes[i].apply(d).Keys[0].PublicKey)
	}
	for i, d := range mesh(nodes, keys, 0, 1) {
		nodes[i].apply(d)
	}
	a, b, c := nodes[0], nodes[1], nodes[2]
	netnstest.Await(t, "c reaches the virtual IP at a", func() bool {
		_, err := c.Try("ping", "-c1", "-W1", virtualIP.Addr().String())
		return err == nil
	})
	if out := a.Run("ip", "-6", "addr", "show", "dev", "wg-sdwan-1"); !strings.Contains(out, "::100/128 scope global nodad deprecated") ||
		!strings.Contains(out, "preferred_lft 0sec") {
		t.Errorf("the virtual IP is not deprecated and without duplicate address detection:\n%s", out)
	}
	if out := a.Run("ip", "-6", "route", "get", "fd5e:8a21:c0de:1::101"); !strings.Contains(out, "src "+overlay(0).Addr().String()) {
		t.Errorf("a speaks from another address than its own: %s", out)
	}

	const interval = 20 * time.Millisecond
	ping := exec.Command("ping", "-i", fmt.Sprint(interval.Seconds()), "-c", "150", "-W", "20", virtualIP.Addr().String())
	var out bytes.Buffer
	ping.Stdout = &out
	if err := c.Start(ping); err != nil {
		t.Fatal(err)
	}
	for i, d := range mesh(nodes, keys, 1, 2) {
		nodes[i].apply(d)
	}
	_ = ping.Wait()
	m := regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`).FindStringSubmatch(out.String())
	if m == nil {
		t.Fatalf("ping printed %s", out.String())
	}
	sent, _ := strconv.Atoi(m[1])
	received, _ := strconv.Atoi(m[2])
	t.Logf("%d of %d lost", sent-received, sent)
	if lost := time.Duration(sent-received) * interval; lost > 2*time.Second {
		t.Errorf("c lost %v", lost)
	}
	if hasVIP(a) || !hasVIP(b) || hasVIP(c) {
		t.Errorf("the virtual IP is on a %v, b %v, c %v; want b alone", hasVIP(a), hasVIP(b), hasVIP(c))
	}
	for _, n := range []*node{a, c} {
		for line := range strings.Lines(n.Run("wg", "show", "wg-sdwan-1", "allowed-ips")) {
			if owns := strings.Contains(line, virtualIP.String()); owns != strings.HasPrefix(line, keys[1]) {
				t.Errorf("%s: %s", n.Name, line)
			}
		}
	}
}

func TestAVirtualIPChangedByHandIsRepaired(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a := newNode(t, s, "a")
	doc := mesh([]*node{a}, nil, 0, 1)[0]
	a.apply(doc)
	for _, hand := range []string{
		"ip -6 addr del " + virtualIP.String() + " dev wg-sdwan-1",
		"ip -6 addr change " + virtualIP.String() + " dev wg-sdwan-1 valid_lft forever preferred_lft forever",
	} {
		a.Run("sh", "-c", hand)
		a.apply(doc)
		if out := a.Run("ip", "-6", "addr", "show", "dev", "wg-sdwan-1", "deprecated"); !strings.Contains(out, virtualIP.String()) {
			t.Errorf("%s: not repaired:\n%s", hand, out)
		}
	}
}
