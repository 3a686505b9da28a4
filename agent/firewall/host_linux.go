package firewall

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"powernode/internal/rtnl"
)

// linuxHost is the machine in whose namespace the agent runs.
type linuxHost struct{}

// bufferBytes holds a batch of some ten thousand elements, and the kernel's answers to it.
const bufferBytes = 16 << 20

func open() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		if err := c.SetWriteBuffer(bufferBytes); err != nil {
			return err
		}
		return c.SetReadBuffer(bufferBytes)
	}))
}

// Available says whether the kernel answers for nftables.
func (linuxHost) Available(context.Context) bool {
	c, err := open()
	if err != nil {
		return false
	}
	_, err = c.ListTablesOfFamily(nftables.TableFamilyINet)
	return err == nil
}

// readTries bounds how often our table is read again that somebody took away while it was read.
const readTries = 3

// Read reads our table and no other.
func (linuxHost) Read(ctx context.Context) (*table, error) {
	c, err := open()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, err := read(c)
		if !errors.Is(err, unix.ENOENT) || try == readTries {
			return t, err
		}
	}
}

func read(c *nftables.Conn) (*table, error) {
	ours, err := find(c)
	if err != nil || ours == nil {
		return nil, err
	}
	out := &table{Dormant: isDormant(ours), Sets: map[string]set{}, Chains: map[string]chain{}}
	if err := readSets(c, ours, out); err != nil {
		return nil, err
	}
	return out, readChains(c, ours, out)
}

// isDormant says whether a table's rules are met by nothing. One that is added once more, without that flag, wakes up.
func isDormant(t *nftables.Table) bool {
	const flag = 0x1 // NFT_TABLE_F_DORMANT
	// The kernel's order is big-endian, and the library has read it in the machine's.
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, t.Flags))&flag != 0
}

func find(c *nftables.Conn) (*nftables.Table, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == tableName {
			return t, nil
		}
	}
	return nil, nil
}

func readSets(c *nftables.Conn, ours *nftables.Table, out *table) error {
	sets, err := c.GetSets(ours)
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		if s.Anonymous {
			continue // part of its rule
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return fmt.Errorf("read set %s: %w", s.Name, err)
		}
		family := map[string]string{nftables.TypeIP6Addr.Name: "ip6", nftables.TypeIPAddr.Name: "ip"}[s.KeyType.Name]
		if !s.Interval || s.IsMap {
			family = "" // not one of ours: it gets replaced
		}
		out.Sets[s.Name] = set{Family: family, Ranges: spans(elements)}
	}
	return nil
}

// spans turns starts and (excluded) ends back into ranges.
func spans(elements []nftables.SetElement) []span {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		if d := bytes.Compare(a.Key, b.Key); d != 0 || a.IntervalEnd == b.IntervalEnd {
			return d
		}
		if a.IntervalEnd { // one range ends where the next begins
			return -1
		}
		return 1
	})
	var out []span
	open := false
	for _, e := range elements {
		a, ok := netip.AddrFromSlice(e.Key)
		if !ok {
			continue
		}
		switch {
		case !e.IntervalEnd:
			out = append(out, span{From: a, To: last(netip.PrefixFrom(a, 0))}) // to the end, unless an end comes
			open = true
		case open:
			out[len(out)-1].To = a.Prev()
			open = false
		}
	}
	return out
}

func readChains(c *nftables.Conn, ours *nftables.Table, out *table) error {
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, k := range chains {
		if k.Table.Name != tableName {
			continue
		}
		rules, err := c.GetRules(ours, k)
		if err != nil { // an expression that the library can't read is none of ours: the chain gets refilled
			rules = []*nftables.Rule{{}}
		}
		h := chain{Accept: k.Policy == nil || *k.Policy == nftables.ChainPolicyAccept}
		if k.Hooknum != nil {
			h.Hook = hookNames[*k.Hooknum]
		}
		if k.Type != nftables.ChainTypeFilter {
			h.Hook = ""
		}
		if k.Priority != nil {
			h.Priority = int(*k.Priority)
		}
		for _, r := range rules {
			h.Digests = append(h.Digests, hex.EncodeToString(mark(r.UserData)))
		}
		out.Chains[k.Name] = h
	}
	return nil
}

var hookNames = map[nftables.ChainHook]string{
	*nftables.ChainHookInput: "input", *nftables.ChainHookForward: "forward", *nftables.ChainHookOutput: "output",
}

var hookNumbers = map[string]*nftables.ChainHook{
	"input": nftables.ChainHookInput, "forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput,
}

// digestType is our attribute in a rule's user data, beside nft's comment; nft passes over what it does not know.
const digestType userdata.Type = 0x70

// mark finds a rule's digest; a rule without one is somebody else's.
func mark(data []byte) []byte {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if userdata.Type(data[0]) == digestType {
			return data[2 : 2+int(data[1])]
		}
		data = data[2+int(data[1]):]
	}
	return nil
}

// Remove takes our table away; one that is gone is removed.
func (linuxHost) Remove(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := open()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	return rtnl.UnlessGone(c.Flush())
}

// batch is one transaction. It numbers its sets itself: the library counts in a variable that all its users share.
type batch struct {
	*nftables.Conn
	table *nftables.Table
	sets  map[string]*nftables.Set
	last  uint32
}

func (b *batch) number() uint32 {
	b.last++
	return b.last
}

// elementsPerMessage keeps a message below what one netlink attribute can hold, 64 KiB.
const elementsPerMessage = 1000

// Write replaces the table's content in one batch. Table, chains and sets stay where they fit: a table that is deleted
// and added, even in one batch, refuses some connections on the way.
func (linuxHost) Write(ctx context.Context, have *table, want table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := open()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if have == nil {
		have = &table{}
	}
	b := &batch{Conn: c, sets: map[string]*nftables.Set{}}
	ours := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	b.table = ours
	for _, name := range slices.Sorted(maps.Keys(have.Chains)) { // all first: rules hold on to sets and chains
		c.FlushChain(&nftables.Chain{Table: ours, Name: name})
	}
	for _, name := range slices.Sorted(maps.Keys(have.Chains)) {
		if w, wanted := want.Chains[name]; !wanted || !have.Chains[name].fits(w) {
			c.DelChain(&nftables.Chain{Table: ours, Name: name})
		}
	}
	if err := b.writeSets(have, want); err != nil {
		return err
	}
	accept := nftables.ChainPolicyAccept
	for _, name := range hooks {
		w := want.Chains[name]
		k := c.AddChain(&nftables.Chain{
			Table: ours, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hookNumbers[name],
			Priority: nftables.ChainPriorityRef(nftables.ChainPriority(w.Priority)), Policy: &accept,
		})
		for _, m := range w.Rules {
			if err := b.addRule(k, m); err != nil {
				return err
			}
		}
	}
	return c.Flush()
}

func (b *batch) writeSets(have *table, want table) error {
	for _, name := range slices.Sorted(maps.Keys(have.Sets)) {
		if w, wanted := want.Sets[name]; !wanted || w.Family != have.Sets[name].Family {
			b.DelSet(&nftables.Set{Table: b.table, Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Sets)) {
		w := want.Sets[name]
		s := &nftables.Set{ID: b.number(), Table: b.table, Name: name, Interval: true, KeyType: nftables.TypeIP6Addr}
		if w.Family == "ip" {
			s.KeyType = nftables.TypeIPAddr
		}
		if err := b.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
		b.sets[name] = s
		if h, there := have.Sets[name]; there && h.Family == w.Family {
			if slices.Equal(h.Ranges, w.Ranges) {
				continue
			}
			b.FlushSet(s)
		}
		for part := range slices.Chunk(elements(w.Ranges), elementsPerMessage) {
			if err := b.SetAddElements(s, part); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
	}
	return nil
}

// elements are each range's start and the address after its end; what reaches to the last address has no end.
func elements(ranges []span) []nftables.SetElement {
	out := make([]nftables.SetElement, 0, 2*len(ranges))
	for _, r := range ranges {
		out = append(out, nftables.SetElement{Key: r.From.AsSlice()})
		if end := r.To.Next(); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

func (b *batch) addRule(k *nftables.Chain, m match) error {
	exprs, err := b.expressions(m)
	if err != nil {
		return fmt.Errorf("rule %q: %w", m.Comment, err)
	}
	sum, err := hex.DecodeString(m.Digest)
	if err != nil {
		return fmt.Errorf("rule %q: %w", m.Comment, err)
	}
	var data []byte
	if m.Comment != "" {
		data = userdata.AppendString(data, userdata.TypeComment, m.Comment)
	}
	data = userdata.Append(data, digestType, sum)
	b.AddRule(&nftables.Rule{Table: k.Table, Chain: k, Exprs: exprs, UserData: data})
	return nil
}

// Offsets and lengths of addresses in their headers.
var addressField = map[string]struct{ source, dest, length uint32 }{
	"ip6": {8, 24, 16}, "ip": {12, 16, 4},
}

var familyNumber = map[string]byte{"ip6": unix.NFPROTO_IPV6, "ip": unix.NFPROTO_IPV4}

var protocolNumber = map[string]byte{
	"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp6": unix.IPPROTO_ICMPV6, "icmp": unix.IPPROTO_ICMP,
}

var stateBits = map[string]uint32{
	"invalid": expr.CtStateBitINVALID, "established": expr.CtStateBitESTABLISHED,
	"related": expr.CtStateBitRELATED, "new": expr.CtStateBitNEW,
}

// expressions writes a rule in nftables' machine language.
func (b *batch) expressions(m match) ([]expr.Any, error) {
	var out []expr.Any
	out = append(out, interfaceMatch(expr.MetaKeyIIFNAME, m.In)...)
	out = append(out, interfaceMatch(expr.MetaKeyOIFNAME, m.Out)...)
	if m.Family != "" {
		out = append(out, &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equals([]byte{familyNumber[m.Family]}))
	}
	if len(m.States) > 0 {
		var bits uint32
		for _, s := range m.States {
			bits |= stateBits[s]
		}
		out = append(out, &expr.Ct{Register: 1, Key: expr.CtKeySTATE},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)})
	}
	field := addressField[m.Family]
	for _, side := range []struct {
		set    string
		offset uint32
	}{{m.Source, field.source}, {m.Dest, field.dest}} {
		if side.set == "" {
			continue
		}
		s := b.sets[side.set]
		if s == nil {
			return nil, fmt.Errorf("there is no set %q", side.set)
		}
		out = append(out, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: side.offset, Len: field.length},
			&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID})
	}
	transport, err := b.transportMatch(m)
	if err != nil {
		return nil, err
	}
	return append(append(out, transport...), &expr.Counter{}, verdict(m)), nil
}

func equals(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// interfaceMatch goes by name: an index is fixed when a rule is loaded, and the interface may not be there yet.
func interfaceMatch(key expr.MetaKey, want interfaces) []expr.Any {
	var out []expr.Any
	load := &expr.Meta{Key: key, Register: 1}
	if want.Name != "" {
		out = append(out, load, equals(interfaceKey(want.Name)))
	}
	for _, n := range want.Except {
		out = append(out, load, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceKey(n)})
	}
	return out
}

// interfaceKey is what a name is compared with; a shorter comparison is one of the beginning.
func interfaceKey(name string) []byte {
	if prefix, star := strings.CutSuffix(name, "*"); star {
		return []byte(prefix)
	}
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func (b *batch) transportMatch(m match) ([]expr.Any, error) {
	if m.Protocol == "" {
		return nil, nil
	}
	out := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{protocolNumber[m.Protocol]})}
	out = append(out, portMatch(0, m.FromPort)...)
	out = append(out, portMatch(2, m.DestPort)...)
	if m.NotOpening {
		out = append(out, notOpening()...)
	}
	if len(m.ICMPTypes) == 0 {
		return out, nil
	}
	out = append(out, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1})
	types := slices.Clone(m.ICMPTypes)
	slices.SortFunc(types, cmp.Compare)
	types = slices.Compact(types)
	if len(types) == 1 {
		return append(out, equals([]byte{byte(types[0])})), nil
	}
	kind := nftables.TypeICMP6Type
	if m.Protocol == "icmp" {
		kind = nftables.TypeICMPType
	}
	var keys []nftables.SetElement
	for _, t := range types {
		keys = append(keys, nftables.SetElement{Key: []byte{byte(t)}})
	}
	s := &nftables.Set{ID: b.number(), Name: "__set%d", Table: b.table, Anonymous: true, Constant: true, KeyType: kind}
	if err := b.AddSet(s, keys); err != nil {
		return nil, err
	}
	return append(out, &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}), nil
}

// notOpening matches TCP segments but those with SYN and without ACK, FIN and RST: byte 13 of the header has the flags.
func notOpening() []expr.Any {
	const fin, syn, rst, ack = 0x01, 0x02, 0x04, 0x10
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{syn}},
	}
}

func portMatch(offset uint32, p ports) []expr.Any {
	if p.To == 0 {
		return nil
	}
	from, to := binaryutil.BigEndian.PutUint16(uint16(p.From)), binaryutil.BigEndian.PutUint16(uint16(p.To))
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	if p.From == p.To {
		return []expr.Any{load, equals(from)}
	}
	return []expr.Any{load,
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: from}, &expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: to}}
}

func verdict(m match) expr.Any {
	switch {
	case m.Verdict == "accept":
		return &expr.Verdict{Kind: expr.VerdictAccept}
	case m.Verdict == "drop":
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case m.Protocol == "tcp":
		return &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}
}
