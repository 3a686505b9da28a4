package local

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// applyRules replaces this installation's table in one batch. What comes from the bridge reaches the host at the
// platform's ports and nowhere else, and nobody through the host; between machines nothing is filtered: that is the
// machines' own lock.
func (i installation) applyRules() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: i.table()})
	conn.FlushTable(table)
	input := conn.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	forward := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	from, to := match(expr.MetaKeyIIFNAME, i.bridge()), match(expr.MetaKeyOIFNAME, i.bridge())
	add := func(chain *nftables.Chain, verdict expr.VerdictKind, parts ...[]expr.Any) {
		var all []expr.Any
		for _, part := range parts {
			all = append(all, part...)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(all, &expr.Verdict{Kind: verdict})})
	}
	add(input, expr.VerdictAccept, from, established())
	for _, kind := range []byte{135, 136} { // neighbour solicitation and advertisement
		add(input, expr.VerdictAccept, from, protocol(unix.IPPROTO_ICMPV6), payload(expr.PayloadBaseTransportHeader, 0, []byte{kind}))
	}
	for _, port := range i.Ports {
		for _, host := range []netip.Addr{i.host6(), i.host4()} {
			add(input, expr.VerdictAccept, from, destination(host), protocol(unix.IPPROTO_TCP),
				payload(expr.PayloadBaseTransportHeader, 2, binary.BigEndian.AppendUint16(nil, port)))
		}
	}
	add(input, expr.VerdictDrop, from)
	add(forward, expr.VerdictAccept, from, to) // bridged frames come here where br_netfilter is loaded
	add(forward, expr.VerdictDrop, from)
	add(forward, expr.VerdictDrop, to)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write rules of the underlay: %w", err)
	}
	return nil
}

// removeRules removes the table if it is there.
func (i installation) removeRules() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name == i.table() {
			conn.DelTable(t)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove rules of the underlay: %w", err)
	}
	return nil
}

func match(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, equal(padded)}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{number})}
}

func payload(base expr.PayloadBase, offset uint32, want []byte) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(want))}, equal(want)}
}

func destination(a netip.Addr) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV6), uint32(24)
	if a.Is4() {
		family, offset = unix.NFPROTO_IPV4, 16
	}
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family})},
		payload(expr.PayloadBaseNetworkHeader, offset, a.AsSlice())...)
}

// established matches answers to what the host itself began.
func established() []expr.Any {
	mask := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func equal(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
