package sdwan_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"powernode/internal/golden"
	"powernode/sdwan"
)

// A fixture is an intent in a network engineer's words, and below it the documents of peers (`-- NAME --`) and the
// tables of their hosts (`-- firewall NAME --`). A host is in each network of the fixture in which it has a peer.
func TestFixturesCompileToTheirText(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			intents := parseIntents(t, string(section(archive, "intent")))
			rendered := &txtar.Archive{Comment: archive.Comment, Files: archive.Files[:1:1]}
			for _, f := range archive.Files[1:] {
				rendered.Files = append(rendered.Files, txtar.File{Name: f.Name, Data: []byte(renderSection(t, intents, f.Name))})
			}
			golden.Equal(t, filepath.Base(file), txtar.Format(rendered))
		})
	}
}

func section(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func renderSection(t *testing.T, intents []sdwan.Intent, name string) string {
	t.Helper()
	switch kind, rest, _ := strings.Cut(name, " "); kind {
	case "firewall":
		fw, err := sdwan.HostFirewall(hostOf(intents, rest))
		if err != nil {
			return "refused: " + err.Error() + "\n"
		}
		return fw.Script()
	case "routes":
		return renderRoutes(intents)
	case "shadowed":
		return renderShadowed(intents, rest)
	case "device":
		return renderDevice(t, intents, rest)
	}
	var b strings.Builder
	for _, in := range intents {
		docs, err := sdwan.Compile(in)
		if err != nil {
			return "refused: " + err.Error() + "\n"
		}
		for _, d := range docs {
			if d.PeerID == name {
				b.WriteString(renderNetwork(d))
			}
		}
	}
	return b.String()
}

func hostOf(intents []sdwan.Intent, peer string) sdwan.Host {
	h := sdwan.Host{InstanceID: peer, Platform: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7443")}}
	for _, in := range intents {
		if slices.ContainsFunc(in.Members, func(m sdwan.Member) bool { return m.PeerID == peer }) {
			h.Memberships = append(h.Memberships, sdwan.Membership{Intent: in, PeerID: peer})
		}
	}
	return h
}

func renderNetwork(n sdwan.Network) string {
	var b strings.Builder
	fmt.Fprintf(&b, "interface %s port %d mtu %d forward %s\n", n.DeviceName, n.ListenPort, n.MTU, n.Forward)
	for _, a := range n.Addresses {
		fmt.Fprintf(&b, "address %s\n", a)
	}
	for _, v := range n.VIPs {
		fmt.Fprintf(&b, "vip %s epoch %d\n", v.Address, v.Epoch)
	}
	for _, p := range n.Peers {
		fmt.Fprintf(&b, "%s %s", map[string]string{"peer": "peer", "user_device": "device"}[p.Kind], p.PeerID)
		for _, e := range p.Endpoints {
			fmt.Fprintf(&b, " at %s", e)
		}
		if p.EndpointHost != "" {
			fmt.Fprintf(&b, " at %s:%d", p.EndpointHost, p.EndpointPort)
		}
		fmt.Fprintf(&b, " allowed %s\n", joined(p.AllowedIPs))
	}
	for _, r := range n.Routes {
		if r.Unreachable {
			fmt.Fprintf(&b, "unreachable %s\n", r.Prefix)
			continue
		}
		fmt.Fprintf(&b, "route %s src %s\n", r.Prefix, r.Source)
	}
	for _, r := range n.NotReady {
		fmt.Fprintf(&b, "not ready, %s: %s\n", r.What, r.Reason)
	}
	return b.String()
}

func joined(prefixes []netip.Prefix) string {
	text := make([]string, len(prefixes))
	for i, p := range prefixes {
		text[i] = p.String()
	}
	return strings.Join(text, " ")
}

func renderRoutes(intents []sdwan.Intent) string {
	var b strings.Builder
	for _, in := range intents {
		for _, r := range sdwan.Routes(in) {
			fmt.Fprintf(&b, "%s %s", r.Kind, r.Prefix)
			if r.ViaPeerID != "" {
				fmt.Fprintf(&b, " via %s %s", r.ViaPeerID, r.ViaAddress)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func renderShadowed(intents []sdwan.Intent, rule string) string {
	var b strings.Builder
	for _, in := range intents {
		for _, r := range in.Rules {
			if r.Name != rule {
				continue
			}
			for _, s := range sdwan.ShadowedBy(in, r) {
				fmt.Fprintf(&b, "%s %s %d-%d\n", s.Name, s.Protocol, s.PortFrom, s.PortTo)
			}
		}
	}
	return b.String()
}

func renderDevice(t *testing.T, intents []sdwan.Intent, device string) string {
	t.Helper()
	var networks []sdwan.DeviceNetwork
	for _, in := range intents {
		if slices.ContainsFunc(in.Devices, func(d sdwan.Device) bool { return d.ID == device }) {
			networks = append(networks, sdwan.DeviceNetwork{Intent: in, DeviceID: device})
		}
	}
	entries, err := sdwan.DeviceEntries(networks)
	if err != nil {
		t.Fatal(err)
	}
	return sdwan.DeviceConfig(device, entries)
}

// parseIntents reads the words of a fixture. A line `network NAME /64` begins a network; a key is made of a name.
func parseIntents(t *testing.T, text string) []sdwan.Intent {
	t.Helper()
	var intents []sdwan.Intent
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if words[0] == "network" {
			intents = append(intents, sdwan.Intent{NetworkID: words[1], Name: words[1], CIDR: netip.MustParsePrefix(words[2]),
				AccountPrefix: netip.PrefixFrom(netip.MustParsePrefix(words[2]).Addr(), 48).Masked()})
		}
		in := &intents[len(intents)-1]
		w := &wordReader{t: t, words: words[1:]}
		parse, ok := map[string]func(*sdwan.Intent, *wordReader){
			"network": parseNetwork, "peer": parsePeer, "vip": parseVIP, "device": parseDevice, "rule": parseRule, "cluster": parseCluster,
		}[words[0]]
		if !ok {
			t.Fatalf("unknown word in %q", line)
		}
		parse(in, w)
		if len(w.words) > 0 {
			t.Fatalf("left over in %q: %v", line, w.words)
		}
	}
	return intents
}

type wordReader struct {
	t     *testing.T
	words []string
}

func (w *wordReader) next() string {
	if len(w.words) == 0 {
		w.t.Fatal("a line ends too early")
	}
	word := w.words[0]
	w.words = w.words[1:]
	return word
}

func (w *wordReader) number() int {
	n, err := strconv.Atoi(w.next())
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *wordReader) each(do func(key string)) {
	for len(w.words) > 0 {
		do(w.next())
	}
}

func key(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func parseNetwork(in *sdwan.Intent, w *wordReader) {
	w.next()
	w.next()
	w.each(func(k string) {
		switch k {
		case "mtu":
			in.MTU = w.number()
		case "policy":
			in.DefaultPolicy = w.next()
		case "suspended":
			in.Suspended = true
		default:
			in.Strategy = k
		}
	})
}

func parsePeer(in *sdwan.Intent, w *wordReader) {
	m := sdwan.Member{PeerID: w.next(), Address: netip.MustParseAddr(w.next()), ShortID: 1, ListenPort: 51820, RegionID: "here"}
	m.PublicKey = key(m.PeerID)
	w.each(func(k string) {
		switch k {
		case "if":
			m.ShortID = w.number()
		case "port":
			m.ListenPort = w.number()
		case "at":
			host, port, _ := strings.Cut(strings.ReplaceAll(w.next(), "]:", "] "), " ")
			if port == "" {
				host, port, _ = strings.Cut(host, ":")
			}
			m.EndpointHost = strings.Trim(host, "[]")
			m.EndpointPort, _ = strconv.Atoi(port)
		case "seen":
			m.ReportedEndpoints = append(m.ReportedEndpoints, netip.MustParseAddrPort(w.next()))
		case "hub":
			m.PubliclyReachable = true
		case "region":
			m.RegionID = w.next()
		case "keyless":
			m.PublicKey = ""
		case "v4":
			m.AddressV4 = netip.MustParseAddr(w.next())
		case "lan":
			m.LANSubnets = append(m.LANSubnets, netip.MustParsePrefix(w.next()))
		case "pods":
			m.PodCIDRs = append(m.PodCIDRs, netip.MustParsePrefix(w.next()))
		case "tag":
			m.Tags = append(m.Tags, w.next())
		default:
			w.t.Fatalf("a peer has no %q", k)
		}
	})
	in.Members = append(in.Members, m)
}

func parseVIP(in *sdwan.Intent, w *wordReader) {
	v := sdwan.VIPIntent{ID: w.next(), Address: netip.MustParseAddr(w.next()), Epoch: 1}
	w.each(func(k string) {
		switch k {
		case "on":
			v.HolderPeerID = w.next()
		case "epoch":
			v.Epoch = int64(w.number())
		}
	})
	in.VIPs = append(in.VIPs, v)
}

func parseDevice(in *sdwan.Intent, w *wordReader) {
	d := sdwan.Device{ID: w.next(), Address: netip.MustParseAddr(w.next())}
	d.Label, d.PublicKey = d.ID, key(d.ID)
	w.each(func(k string) {
		switch k {
		case "tag":
			d.Tags = append(d.Tags, w.next())
		case "keyless":
			d.PublicKey = ""
		}
	})
	in.Devices = append(in.Devices, d)
}

// parseRule reads `rule NAME PRIORITY ACTION DIRECTION PROTOCOL[/FROM[-TO]] from SELECTOR to SELECTOR [force] [off]`.
func parseRule(in *sdwan.Intent, w *wordReader) {
	r := sdwan.Rule{Name: w.next(), Priority: w.number(), Action: w.next(), Direction: w.next(), Enabled: true}
	r.ID = r.Name
	protocol, ports, _ := strings.Cut(w.next(), "/")
	r.Protocol = protocol
	if ports != "" {
		from, to, ok := strings.Cut(ports, "-")
		if !ok {
			to = from
		}
		r.PortFrom, _ = strconv.Atoi(from)
		r.PortTo, _ = strconv.Atoi(to)
	}
	w.each(func(k string) {
		switch k {
		case "from":
			r.Source = selector(w.next())
		case "to":
			r.Destination = selector(w.next())
		case "force":
			r.Force = true
		case "off":
			r.Enabled = false
		}
	})
	in.Rules = append(in.Rules, r)
}

// selector reads any, tag:NAME, peer:ID or a prefix.
func selector(word string) *sdwan.Selector {
	if word == "any" {
		return nil
	}
	if tag, ok := strings.CutPrefix(word, "tag:"); ok {
		return &sdwan.Selector{Tag: tag}
	}
	if id, ok := strings.CutPrefix(word, "peer:"); ok {
		return &sdwan.Selector{PeerID: id}
	}
	return &sdwan.Selector{CIDR: netip.MustParsePrefix(word)}
}

func parseCluster(in *sdwan.Intent, w *wordReader) {
	c := sdwan.Cluster{ID: w.next(), FlannelBackend: sdwan.BackendVXLAN}
	c.Name = c.ID
	w.each(func(k string) {
		switch k {
		case "vip":
			c.VIP = netip.MustParseAddr(w.next())
		case "servers":
			c.ServerPeerIDs = strings.Split(w.next(), ",")
		case "agents":
			c.AgentPeerIDs = strings.Split(w.next(), ",")
		case "pods":
			c.PodCIDR = netip.MustParsePrefix(w.next())
		case "services":
			c.ServiceCIDR = netip.MustParsePrefix(w.next())
		default:
			c.FlannelBackend = k
		}
	})
	in.Clusters = append(in.Clusters, c)
}
