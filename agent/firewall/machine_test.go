package firewall

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"powernode/internal/netnstest"
	"powernode/sdwan"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, nil)) }

// countedHost counts writes on their way to the machine, whose thread does them.
type countedHost struct {
	linuxHost
	writes int
}

func (h *countedHost) Write(ctx context.Context, have *table, want table) error {
	h.writes++
	return h.linuxHost.Write(ctx, have, want)
}

func (h *countedHost) Remove(ctx context.Context) error {
	h.writes++
	return h.linuxHost.Remove(ctx)
}

// emptiedHost has its table taken away by somebody between a read and the next write, once.
type emptiedHost struct {
	linuxHost
	done bool
}

func (h *emptiedHost) Write(ctx context.Context, have *table, want table) error {
	if !h.done {
		h.done = true
		if err := h.Remove(ctx); err != nil {
			return err
		}
	}
	return h.linuxHost.Write(ctx, have, want)
}

// node is a machine and the subsystem in it.
type node struct {
	*netnstest.Machine
	t    *testing.T
	host *countedHost
}

func newNode(t *testing.T) *node {
	return &node{netnstest.NewSwitch(t).Machine("a"), t, new(countedHost)}
}

// reconcile says how many writes it took.
func (n *node) reconcile(f sdwan.Firewall) (int, error) {
	n.t.Helper()
	before := n.host.writes
	s := &Subsystem{log: zerolog.Nop(), host: n.host}
	err := n.Do(func() error { return s.Reconcile(context.Background(), document(f)) })
	return n.host.writes - before, err
}

func (n *node) apply(f sdwan.Firewall) {
	n.t.Helper()
	if _, err := n.reconcile(f); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) list() string {
	n.t.Helper()
	return n.Run("nft", "-n", "list", "table", "inet", tableName)
}

func document(f sdwan.Firewall) *sdwan.Document {
	return &sdwan.Document{Networks: []sdwan.Network{{NetworkID: "n"}}, Firewall: f}
}

// example has every kind of condition.
func example() sdwan.Firewall {
	return sdwan.Firewall{
		Table: tableName, Hash: "1",
		Sets: []sdwan.FirewallSet{
			{Name: "operators", Family: "ip6", Prefixes: prefixes("fd00:99::/64", "fd00:98::1/128")},
			{Name: "lan", Family: "ip", Prefixes: prefixes("10.99.0.0/24")},
			{Name: "nobody", Family: "ip6"},
		},
		Input: []sdwan.FirewallRule{
			{Comment: "established", States: []string{"established", "related"}, Verdict: "accept"},
			{Comment: "invalid", States: []string{"invalid"}, Verdict: "drop"},
			{Comment: "lock", InExcept: []string{"lo", "wg-sdwan-*"}, DestinationSet: "operators", Protocol: "udp", PortFrom: 51820, PortTo: 51829, Verdict: "accept"},
			{Comment: "icmp", InInterfaces: []string{"wg-sdwan-1", "wg-sdwan-2"}, Protocol: "icmp6", ICMPTypes: []int{1, 2, 3, 4, 128, 129}, Verdict: "accept"},
			{Comment: "one type", Protocol: "icmp", ICMPTypes: []int{8}, Verdict: "accept"},
			{Comment: "any of ours", InInterfaces: []string{"wg-sdwan-*", "eth1"}, SourceSet: "operators", Protocol: "tcp", PortFrom: 6443, Verdict: "accept"},
			{Comment: "refuse", InInterfaces: []string{"wg-sdwan-1"}, Protocol: "tcp", PortFrom: 22, Verdict: "reject"},
		},
		Forward: []sdwan.FirewallRule{
			{Comment: "across", InInterfaces: []string{"wg-sdwan-*"}, OutInterfaces: []string{"wg-sdwan-*"}, Verdict: "drop"},
			{Comment: "opens nothing", SourceSet: "lan", Protocol: "tcp", SourcePortFrom: 443, SourcePortTo: 443, NotOpening: true, Verdict: "accept"},
			{Comment: "source port", SourceSet: "lan", Protocol: "udp", SourcePortFrom: 53, SourcePortTo: 53, Verdict: "accept"},
		},
		Output: []sdwan.FirewallRule{
			{Comment: "refuse", DestinationSet: "nobody", Verdict: "reject"},
			{Comment: "v4", Family: "ip", OutInterfaces: []string{"wg-sdwan-1"}, Verdict: "drop"},
		},
	}
}

func prefixes(in ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestTheTableReadsAsTheDocumentSays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply(example())
	want := `table inet powernode {
	set lan {
		type ipv4_addr
		flags interval
		elements = { 10.99.0.0/24 }
	}

	set nobody {
		type ipv6_addr
		flags interval
	}

	set operators {
		type ipv6_addr
		flags interval
		elements = { fd00:98::1,
			     fd00:99::/64 }
	}

	chain input {
		type filter hook input priority -10; policy accept;
		ct state 0x2,0x4 counter packets 0 bytes 0 accept comment "established"
		ct state 0x1 counter packets 0 bytes 0 drop comment "invalid"
		iifname != "lo" iifname != "wg-sdwan-*" ip6 daddr @operators udp dport 51820-51829 counter packets 0 bytes 0 accept comment "lock"
		iifname "wg-sdwan-1" icmpv6 type { 1, 2, 3, 4, 128, 129 } counter packets 0 bytes 0 accept comment "icmp"
		iifname "wg-sdwan-2" icmpv6 type { 1, 2, 3, 4, 128, 129 } counter packets 0 bytes 0 accept comment "icmp"
		icmp type 8 counter packets 0 bytes 0 accept comment "one type"
		iifname "wg-sdwan-*" ip6 saddr @operators tcp dport 6443 counter packets 0 bytes 0 accept comment "any of ours"
		iifname "eth1" ip6 saddr @operators tcp dport 6443 counter packets 0 bytes 0 accept comment "any of ours"
		iifname "wg-sdwan-1" tcp dport 22 counter packets 0 bytes 0 reject with tcp reset comment "refuse"
	}

	chain forward {
		type filter hook forward priority -10; policy accept;
		iifname "wg-sdwan-*" oifname "wg-sdwan-*" counter packets 0 bytes 0 drop comment "across"
		ip saddr @lan tcp sport 443 tcp flags != 0x2 / 0x1,0x2,0x4,0x10 counter packets 0 bytes 0 accept comment "opens nothing"
		ip saddr @lan udp sport 53 counter packets 0 bytes 0 accept comment "source port"
	}

	chain output {
		type filter hook output priority -10; policy accept;
		ip6 daddr @nobody counter packets 0 bytes 0 reject comment "refuse"
		oifname "wg-sdwan-1" meta nfproto 2 counter packets 0 bytes 0 drop comment "v4"
	}
}`
	if diff := cmp.Diff(want, n.list()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if writes, err := n.reconcile(example()); err != nil || writes != 0 {
		t.Errorf("a second Reconcile: %d writes, %v; want none", writes, err)
	}
}

func TestEditsByHandAreRepaired(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply(example())
	intact := n.list()
	for _, tt := range []struct{ name, edit string }{
		{"a rule is added", "add rule inet powernode input tcp dport 22 accept"},
		{"a rule stands in front", "insert rule inet powernode input accept comment \"established\""},
		{"a chain is emptied", "flush chain inet powernode forward"},
		{"an address is added to a set", "add element inet powernode operators { fd00:66::1 }"},
		{"an address is taken out", "delete element inet powernode operators { fd00:98::1 }"},
		{"a policy is changed", "add chain inet powernode input { policy drop ; }"},
		{"a chain is added", "add chain inet powernode mine { type filter hook input priority -20 ; policy drop ; }"},
		{"a set is added", "add set inet powernode mine { type inet_service ; }"},
		{"a map is added", "add map inet powernode mine { type inet_service : verdict ; }"},
		{"a rule is added that jumps", "add chain inet powernode mine; add rule inet powernode mine accept; add rule inet powernode input jump mine"},
		{"the table is deleted", "delete table inet powernode"},
	} {
		n.Run("nft", tt.edit)
		if writes, err := n.reconcile(example()); err != nil || writes != 1 {
			t.Errorf("%s: %d writes, %v; want one", tt.name, writes, err)
		}
		if diff := cmp.Diff(intact, n.list()); diff != "" {
			t.Fatalf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestAReplacedRuleIsNoticed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply(example())
	intact := n.list()
	var handle string
	for line := range strings.Lines(n.Run("nft", "-a", "list", "chain", "inet", tableName, "forward")) {
		if strings.Contains(line, `comment "across"`) {
			_, handle, _ = strings.Cut(strings.TrimSpace(line), "# handle ")
		}
	}
	n.Run("nft", "replace rule inet powernode forward handle "+handle+` iifname "wg-sdwan-*" oifname "wg-sdwan-*" counter accept comment "across"`)
	if writes, err := n.reconcile(example()); err != nil || writes != 1 {
		t.Errorf("%d writes, %v; want one", writes, err)
	}
	if diff := cmp.Diff(intact, n.list()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTablesOfOthersStayByteIdentical(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Run("nft", `table ip nat { chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; ip saddr 10.0.0.0/8 masquerade; }; }`)
	n.Run("nft", `table inet kube { set s { type ipv6_addr; elements = { fd00::1 }; }; chain forward { type filter hook forward priority 0; policy drop; meta mark set 0x10000; }; }`)
	others := func() string {
		return n.Run("nft", "list", "table", "ip", "nat") + n.Run("nft", "list", "table", "inet", "kube")
	}
	before := others()
	n.apply(example())
	if diff := cmp.Diff(before, others()); diff != "" {
		t.Errorf("after apply (-want +got)\n%s", diff)
	}
	s := &Subsystem{host: n.host}
	if err := n.Do(func() error {
		return s.Reconcile(context.Background(), &sdwan.Document{Firewall: sdwan.Firewall{Table: tableName}})
	}); err != nil {
		t.Fatal(err)
	}
	if out := n.Run("nft", "list", "tables"); strings.Contains(out, tableName) {
		t.Errorf("our table is left: %s", out)
	}
	if diff := cmp.Diff(before, others()); diff != "" {
		t.Errorf("after removal (-want +got)\n%s", diff)
	}
}

func TestNoOpinionLeavesTheTableAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply(example())
	before := n.list()
	if writes, err := n.reconcile(sdwan.Firewall{}); err != nil || writes != 0 {
		t.Errorf("%d writes, %v; want none", writes, err)
	}
	if diff := cmp.Diff(before, n.list()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestAFailedTransactionLeavesTheOldRulesWhole(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply(example())
	before := n.list()
	bad, err := compile(example())
	if err != nil {
		t.Fatal(err)
	}
	overlapping := bad.Sets["nobody"]
	for _, p := range prefixes("fd00::/64", "fd00::/80") { // the kernel takes no overlap
		overlapping.Ranges = append(overlapping.Ranges, span{p.Addr(), last(p)})
	}
	bad.Sets["nobody"] = overlapping
	if err := n.Do(func() error {
		have, err := n.host.Read(context.Background())
		if err != nil {
			return err
		}
		return n.host.Write(context.Background(), have, bad)
	}); err == nil {
		t.Error("the kernel took overlapping ranges")
	}
	if diff := cmp.Diff(before, n.list()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestEveryOrderOfRuleSetsEndsAsTheLastOne(t *testing.T) {
	t.Parallel()
	small := sdwan.Firewall{Table: tableName, Input: []sdwan.FirewallRule{{Verdict: "drop", Protocol: "tcp", PortFrom: 22}}}
	otherFamily := sdwan.Firewall{Table: tableName, Sets: []sdwan.FirewallSet{{Name: "operators", Family: "ip", Prefixes: prefixes("10.0.0.0/8", "0.0.0.0/0")}},
		Forward: []sdwan.FirewallRule{{SourceSet: "operators", Verdict: "accept"}}}
	all := sdwan.Firewall{Table: tableName, Sets: []sdwan.FirewallSet{{Name: "operators", Family: "ip6", Prefixes: prefixes("ffff::/16")}},
		Output: []sdwan.FirewallRule{{DestinationSet: "operators", Verdict: "drop"}}}
	n := newNode(t)
	cases := []sdwan.Firewall{example(), small, otherFamily, all}
	fresh := make([]string, len(cases))
	for i, c := range cases {
		n.apply(c)
		fresh[i] = n.list()
		n.Run("nft", "delete", "table", "inet", tableName)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		i := rng.IntN(len(cases))
		n.apply(cases[i])
		if got := n.list(); !sameRules(fresh[i], got) {
			t.Fatalf("case %d (-want +got)\n%s", i, cmp.Diff(fresh[i], got))
		}
	}
}

// sameRules compares listings whose sets may come in another order, since sets stay in the order they were made in.
func sameRules(a, b string) bool {
	count := func(s string) map[string]int {
		m := map[string]int{}
		for line := range strings.Lines(s) {
			m[strings.TrimSpace(line)]++
		}
		return m
	}
	return cmp.Equal(count(a), count(b))
}

func TestFiveThousandSourcesAreOneTransaction(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	f := example()
	for i := range 5000 {
		f.Sets[0].Prefixes = append(f.Sets[0].Prefixes, netip.MustParsePrefix(fmt.Sprintf("fd01:%x:0:%x::/64", i, i)))
	}
	start := time.Now()
	writes, err := n.reconcile(f)
	if err != nil || writes != 1 {
		t.Fatalf("%d writes, %v; want one", writes, err)
	}
	t.Logf("applied and read back in %v", time.Since(start))
	if writes, err := n.reconcile(f); err != nil || writes != 0 {
		t.Errorf("again: %d writes, %v; want none", writes, err)
	}
}

func TestPacketsMeetTheRules(t *testing.T) {
	t.Parallel()
	s := netnstest.NewSwitch(t)
	a, b := &node{s.Machine("a"), t, new(countedHost)}, s.Machine("b")
	ping := func(address netip.Addr) bool {
		_, err := b.Try("ping", "-c1", "-W1", address.String())
		return err == nil
	}
	netnstest.Await(t, "b reaches a without rules", func() bool { return ping(a.Address) && ping(a.Address4) })
	f := sdwan.Firewall{Table: tableName,
		Sets: []sdwan.FirewallSet{{Name: "b", Family: "ip6", Prefixes: []netip.Prefix{netip.PrefixFrom(b.Address, 128)}}},
		Input: []sdwan.FirewallRule{
			{Protocol: "icmp6", ICMPTypes: []int{133, 134, 135, 136}, Verdict: "accept"},
			{InInterfaces: []string{"eth*"}, SourceSet: "b", Verdict: "drop"},
		}}
	a.apply(f)
	if ping(a.Address) {
		t.Error("a source that is dropped gets an answer")
	}
	if !ping(a.Address4) {
		t.Error("a set of IPv6 addresses drops IPv4")
	}
	f.Input[1].InInterfaces = []string{"wg-sdwan-*"}
	a.apply(f)
	if !ping(a.Address) {
		t.Error("a rule for another interface matches")
	}
}

func TestATableThatWentInBetweenIsWrittenWhole(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	f := example()
	n.apply(f)
	want := n.list()
	f.Input = f.Input[1:]
	n.apply(f)
	meddled := &Subsystem{log: zerolog.Nop(), host: new(emptiedHost)}
	if err := n.Do(func() error { return meddled.Reconcile(context.Background(), document(example())) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, n.list()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := n.Do(func() error { return linuxHost{}.Remove(context.Background()) }); err != nil {
			t.Errorf("remove a table that may be gone: %v", err)
		}
	}
}

func TestATableThatWasPutToSleepIsWokenUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply(example())
	want := n.list()
	n.Run("nft", "add", "table", "inet", tableName, "{ flags dormant ; }")
	if !strings.Contains(n.list(), "dormant") {
		t.Fatal("the table was not put to sleep")
	}
	n.apply(example())
	if diff := cmp.Diff(want, n.list()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
