package preflight

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"powernode/spec/k3srig/internal/config"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

var machine = []Interface{
	{Name: "lo", Loopback: true, Addrs: addrs("127.0.0.1", "::1")},
	{Name: "eth0", Addrs: addrs("192.0.2.1", "fe80::1")},
	{Name: "wg-sdwan-1", Addrs: addrs("fd00::21", "fe80::2")},
	{Name: "wg-sdwan-2", Addrs: addrs("fe80::3")},
}

func TestFlannel(t *testing.T) {
	v4, v6 := config.Families{IPv4: true}, config.Families{IPv6: true}
	for name, c := range map[string]struct {
		iface string
		want  config.Families
		err   string
	}{
		"none configured": {"", v6, ""},
		"present":         {"wg-sdwan-1", v6, ""},
		"no IPv4":         {"wg-sdwan-1", v4, "failed to find IPv4 address for interface wg-sdwan-1"},
		"link-local only": {"wg-sdwan-2", v6, "failed to find IPv6 address for interface wg-sdwan-2"},
		"dual":            {"eth0", config.Families{IPv4: true, IPv6: true}, "failed to find IPv6 address for interface eth0"},
		"no interface":    {"wg-sdwan-9", v6, "unable to find interface wg-sdwan-9"},
	} {
		err := Flannel(machine, c.iface, c.want)
		if (c.err == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

func TestNodeIPs(t *testing.T) {
	for name, c := range map[string]struct {
		settings config.Settings
		families config.Families
		want     []netip.Addr
		err      string
	}{
		"given":        {config.Settings{NodeIPs: addrs("fd00::21")}, config.Families{IPv6: true}, addrs("fd00::21"), ""},
		"foreign":      {config.Settings{NodeIPs: addrs("fd00::22")}, config.Families{IPv6: true}, nil, "not found in the host's network interfaces"},
		"chosen":       {config.Settings{}, config.Families{IPv4: true}, addrs("192.0.2.1"), ""},
		"by interface": {config.Settings{FlannelIface: "wg-sdwan-1"}, config.Families{IPv6: true}, addrs("fd00::21"), ""},
		"none":         {config.Settings{FlannelIface: "wg-sdwan-1"}, config.Families{IPv4: true}, nil, "set node-ip"},
	} {
		got, err := NodeIPs(machine, &c.settings, c.families)
		if (c.err == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.err)) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v, %q", name, got, err, c.want, c.err)
		}
	}
}
