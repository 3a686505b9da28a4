package sdwan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// privateKeyLine is left to fill: the platform has no private key to put there.
const (
	privateKeyLine = "# PrivateKey = (made on the device and known to it alone: fill it in and take the # away)"
	privateKeyMark = "# PrivateKey ="
)

// DeviceNetwork is a network that a device's file is for, and which of its devices it is.
type DeviceNetwork struct {
	Intent   Intent
	DeviceID string
}

// DeviceEntry is one network in a device's file. Without a gateway its [Peer] is missing: GatewayPeerID is empty then,
// and GatewayReason says why.
type DeviceEntry struct {
	NetworkID     string
	Name          string
	CIDR          netip.Prefix
	Address       netip.Prefix
	GatewayPeerID string
	GatewayReason string
	PublicKey     string
	Endpoint      string
	AllowedIPs    []netip.Prefix
	MTU           int
}

// DeviceEntries are the networks of a device's file, sorted by name and id.
func DeviceEntries(networks []DeviceNetwork) ([]DeviceEntry, error) {
	out := make([]DeviceEntry, 0, len(networks))
	for _, n := range networks {
		e, err := deviceEntry(n)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b DeviceEntry) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.NetworkID, b.NetworkID))
	})
	return out, nil
}

func deviceEntry(n DeviceNetwork) (DeviceEntry, error) {
	i := slices.IndexFunc(n.Intent.Devices, func(d Device) bool { return d.ID == n.DeviceID })
	if i < 0 {
		return DeviceEntry{}, &IntentError{n.Intent.NetworkID, "device " + n.DeviceID, "is no device of the network"}
	}
	e := DeviceEntry{
		NetworkID: n.Intent.NetworkID, Name: n.Intent.Name, CIDR: n.Intent.CIDR.Masked(),
		Address: host(n.Intent.Devices[i].Address), AllowedIPs: []netip.Prefix{},
		MTU: cmp.Or(n.Intent.MTU, DefaultMTU),
	}
	gateway, ok := GatewayOf(n.Intent)
	switch {
	case !ok:
		e.GatewayReason = "no gateway: the network has neither a hub nor a peer with an endpoint"
		return e, nil
	case gateway.PublicKey == "":
		e.GatewayReason = fmt.Sprintf("gateway %s: no public key reported yet", gateway.label())
		return e, nil
	}
	e.GatewayPeerID, e.PublicKey, e.Endpoint = gateway.PeerID, gateway.PublicKey, deviceEndpoint(n.Intent, gateway)
	e.AllowedIPs = append(e.AllowedIPs, n.Intent.CIDR.Masked())
	f := fabric{in: n.Intent}
	for _, m := range n.Intent.Members {
		e.AllowedIPs = append(e.AllowedIPs, m.LANSubnets...)
		e.AllowedIPs = append(e.AllowedIPs, f.routedPods(m)...)
	}
	e.AllowedIPs = merged(e.AllowedIPs)
	return e, nil
}

// deviceEndpoint is the one endpoint that the file can name: the operator's word first.
func deviceEndpoint(in Intent, gateway Member) string {
	n := newNode(in, gateway)
	switch {
	case len(n.operator) > 0:
		return n.operator[0].String()
	case n.hostname != "":
		return n.hostname + ":" + strconv.Itoa(n.port) // a name, never an IPv6 literal
	}
	return n.reported[0].String()
}

// DeviceConfig renders the file of a device in wg-quick's format: one [Interface] with every address, one [Peer] for
// each network, whose gateway knows where everything behind it is. A virtual IP that moves changes no file.
func DeviceConfig(label string, entries []DeviceEntry) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# device %s\n[Interface]\n%s\n", oneLine(label), privateKeyLine)
	mtu := DefaultMTU
	for _, e := range entries {
		fmt.Fprintf(&b, "Address = %s\n", e.Address)
		mtu = min(mtu, e.MTU)
	}
	fmt.Fprintf(&b, "MTU = %d\n", mtu)
	for _, e := range entries {
		if e.GatewayPeerID == "" {
			fmt.Fprintf(&b, "\n# network %s: %s\n", oneLine(e.Name), oneLine(e.GatewayReason))
			continue
		}
		allowed := make([]string, len(e.AllowedIPs))
		for i, p := range e.AllowedIPs {
			allowed[i] = p.String()
		}
		fmt.Fprintf(&b, "\n# network %s\n[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = %s\nPersistentKeepalive = %d\n",
			oneLine(e.Name), e.PublicKey, e.Endpoint, strings.Join(allowed, ", "), KeepaliveSeconds)
	}
	return b.String()
}

// oneLine keeps a name from ending its comment: a file's text can't become a setting.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
}

// WithPrivateKey fills the one line that DeviceConfig left, on the device.
func WithPrivateKey(config, privateKey string) (string, error) {
	var out strings.Builder
	filled := 0
	for line := range strings.Lines(config) {
		bare := strings.TrimLeft(strings.TrimSpace(line), "#")
		key, value, _ := strings.Cut(bare, "=")
		left := bare != strings.TrimSpace(line) || strings.TrimSpace(value) == "" // a comment, or without a value
		if strings.EqualFold(strings.TrimSpace(key), "PrivateKey") && left {
			line = "PrivateKey = " + privateKey + "\n"
			filled++
		}
		out.WriteString(line)
	}
	if filled != 1 {
		return "", fmt.Errorf("the configuration has %d lines PrivateKey, not one", filled)
	}
	return out.String(), nil
}
