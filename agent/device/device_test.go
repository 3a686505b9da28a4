package device

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/nodeapi"
	"powernode/nodeapi/nodeapitest"
	"powernode/sdwan"
)

const peerKey = "7OB5ImtRVcrTPvS9Q0VAn7fX2LdDYqMM3iFVx6zqTHk="

// answered is what a platform answers to a redemption.
const answered = `# two networks
[Interface]
PrivateKey =
Address = fd12:3456:789a:1:1::/128, fd12:3456:789a:2:1::/128

[Peer]
PublicKey = ` + peerKey + `
Endpoint = 10.1.0.2:51820
AllowedIPs = fd12:3456:789a:1::/64
PersistentKeepalive = 25
`

func TestJoinMakesOneKeyAndWritesOneFile(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	var keys, configs []string
	p.OnDevice = func(_ string, in nodeapi.DeviceBootstrapRequest) (nodeapi.DeviceBootstrapAnswer, error) {
		keys = append(keys, in.PublicKey)
		return nodeapi.DeviceBootstrapAnswer{Config: answered, Filename: "powernode.conf"}, nil
	}
	dir := t.TempDir()
	o := Options{StateDir: filepath.Join(dir, "state"), ConfigDir: filepath.Join(dir, "wireguard")}
	for _, token := range []string{"one", "two"} {
		path, err := Join(t.Context(), o, p.URL+nodeapi.DeviceBootstrapPath+token+"#"+p.CASHA256())
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, string(b))
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
	}
	if len(keys) != 2 || keys[0] != keys[1] || configs[0] != configs[1] {
		t.Errorf("keys %v", keys)
	}
	c, err := parseConfig(configs[0])
	if err != nil {
		t.Fatal(err)
	}
	if c.privateKey.PublicKey().String() != keys[0] {
		t.Error("the file's key is not the one that was redeemed with")
	}
}

func TestJoinRefusesWhatCouldHarmTheMachine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, file, config, says string }{
		{"a path", "../../etc/passwd", answered, "named the file"},
		{"a command", "powernode.conf", answered + "\nPostUp = reboot\n", "PostUp: is not taken"},
		{"no line for the key", "powernode.conf", strings.Replace(answered, "PrivateKey =\n", "", 1), "0 lines PrivateKey"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := nodeapitest.New(t)
			p.OnDevice = func(string, nodeapi.DeviceBootstrapRequest) (nodeapi.DeviceBootstrapAnswer, error) {
				return nodeapi.DeviceBootstrapAnswer{Config: tt.config, Filename: tt.file}, nil
			}
			dir := t.TempDir()
			_, err := Join(t.Context(), Options{StateDir: dir, ConfigDir: filepath.Join(dir, "c")}, p.URL+nodeapi.DeviceBootstrapPath+"x#"+p.CASHA256())
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
			if left, _ := os.ReadDir(filepath.Join(dir, "c")); len(left) != 0 {
				t.Errorf("wrote %v", left)
			}
		})
	}
}

func TestConfigurationBecomesOneInterfaceWithItsRoutes(t *testing.T) {
	t.Parallel()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := sdwan.WithPrivateKey(answered, key.String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	want := sdwan.Network{NetworkID: "powernode", DeviceName: "wg-sdwan-9999", CIDR: prefix("fd12:3456:789a:1::/64"),
		Addresses:  []netip.Prefix{prefix("fd12:3456:789a:1:1::/128"), prefix("fd12:3456:789a:2:1::/128")},
		ListenPort: 7, MTU: 1420, Key: sdwan.KeyState{State: "current"}, Forward: "off",
		Peers: []sdwan.Peer{{PeerID: "peer-1", Kind: "peer", PublicKey: peerKey, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:51820")},
			AllowedIPs: []netip.Prefix{prefix("fd12:3456:789a:1::/64")}, KeepaliveSeconds: 25}},
		Routes: []sdwan.Route{{Prefix: prefix("fd12:3456:789a:1::/64"), Source: addr("fd12:3456:789a:1:1::")}},
	}
	got := document("powernode", active{"wg-sdwan-9999", 7}, c).Networks[0]
	a, _ := json.MarshalIndent(want, "", " ")
	b, _ := json.MarshalIndent(got, "", " ")
	if diff := cmp.Diff(string(a), string(b)); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
}

func TestConfigurationLinesThatDoNothingAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, says string }{
		{"PrivateKey = x", "line 1 is no KEY = VALUE in a section"},
		{"[Interface]\nPrivateKey = x", "line 2: PrivateKey: is no WireGuard key"},
		{"[Interface]\nDNS = 1.1.1.1", "line 2: DNS: is not taken"},
		{"[Interface]\nMTU = 1279", "line 2: MTU: must be 1280..65535"},
		{"[Peer]\nAllowedIPs = x", `"x" is no prefix`},
		{"[Peer]\nEndpoint = x", "is no HOST:PORT"},
		{"[Interface]", "no PrivateKey"},
	} {
		if _, err := parseConfig(tt.text); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: got %v, want %q", tt.text, err, tt.says)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(answered)
	f.Add("[Interface]\n[Peer]\nAllowedIPs = ::/0,1.2.3.4")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseConfig(text)
		if err == nil && (len(c.addresses) == 0 || c.privateKey == (wgtypes.Key{})) {
			t.Errorf("took %q", text)
		}
	})
}
