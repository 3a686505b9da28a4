package firewall

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"powernode/sdwan"
)

// table is the content of our table in comparable form: what is there, and what is wanted.
type table struct {
	Dormant bool // nothing meets its rules
	Sets    map[string]set
	Chains  map[string]chain
}

// set is a named set of address ranges, merged and sorted.
type set struct {
	Family string // ip6, ip
	Ranges []span
}

// span is a range of addresses, both ends included.
type span struct{ From, To netip.Addr }

// chain is a chain by its hook and the digests of its rules. A wanted chain has the rules too.
type chain struct {
	Hook     string // input, forward, output; empty: no base chain
	Priority int
	Accept   bool // the policy
	Digests  []string
	Rules    []match
}

// priority is that of our base chains: before those of others, whose usual one is 0.
const priority = -10

var hooks = []string{"input", "forward", "output"}

// match is one rule of nftables: a document's rule becomes several where nftables has no "one of these".
type match struct {
	Comment    string
	Digest     string
	In, Out    interfaces
	Source     string // a set's name
	Dest       string
	Family     string // ip6, ip or empty
	Protocol   string
	DestPort   ports
	FromPort   ports
	ICMPTypes  []int
	NotOpening bool
	States     []string
	Verdict    string
}

// interfaces restricts one side to Name, where there is one, and to none of Except. Names may end in *.
type interfaces struct {
	Name   string
	Except []string
}

type ports struct{ From, To int }

// compile translates a document's section. What nftables would refuse is refused here, with the rule's name: the
// rules in place stay.
func compile(f sdwan.Firewall) (table, error) {
	t := table{Sets: map[string]set{}, Chains: map[string]chain{}}
	var errs []error
	for _, s := range f.Sets {
		c, err := compileSet(s)
		if _, twice := t.Sets[s.Name]; twice {
			err = errors.New("it is there twice")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set %q: %w", s.Name, err))
			continue
		}
		t.Sets[s.Name] = c
	}
	for _, hook := range hooks {
		rules := map[string][]sdwan.FirewallRule{"input": f.Input, "forward": f.Forward, "output": f.Output}[hook]
		c := chain{Hook: hook, Priority: priority, Accept: true}
		for i, r := range rules {
			ms, err := compileRule(r, t.Sets)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s rule %d %q: %w", hook, i+1, r.Comment, err))
				continue
			}
			for _, m := range ms {
				c.Rules = append(c.Rules, m)
				c.Digests = append(c.Digests, m.Digest)
			}
		}
		t.Chains[hook] = c
	}
	return t, errors.Join(errs...)
}

var setName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

func compileSet(s sdwan.FirewallSet) (set, error) {
	if !setName.MatchString(s.Name) {
		return set{}, errors.New("nftables takes no such name")
	}
	if s.Family != "ip6" && s.Family != "ip" {
		return set{}, fmt.Errorf("family %q is neither ip6 nor ip", s.Family)
	}
	out := set{Family: s.Family}
	for _, p := range s.Prefixes {
		if !p.IsValid() || p.Addr().Is4() != (s.Family == "ip") {
			return set{}, fmt.Errorf("%s is not of family %s", p, s.Family)
		}
		out.Ranges = append(out.Ranges, span{p.Masked().Addr(), last(p)})
	}
	out.Ranges = merge(out.Ranges)
	return out, nil
}

// last is a prefix's last address.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// merge sorts ranges and joins what overlaps or touches: a set with intervals takes nothing else.
func merge(in []span) []span {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b span) int { return cmp.Or(a.From.Compare(b.From), a.To.Compare(b.To)) })
	var out []span
	for _, s := range in {
		if n := len(out); n > 0 {
			// Next of the last address of all is invalid, and less than any.
			if next := out[n-1].To.Next(); !next.IsValid() || s.From.Compare(next) <= 0 {
				if s.To.Compare(out[n-1].To) > 0 {
					out[n-1].To = s.To
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

func compileRule(r sdwan.FirewallRule, sets map[string]set) ([]match, error) {
	m := match{
		Comment: comment(r.Comment), Source: r.SourceSet, Dest: r.DestinationSet, Family: r.Family, Protocol: r.Protocol,
		DestPort: ports{r.PortFrom, r.PortTo}, FromPort: ports{r.SourcePortFrom, r.SourcePortTo},
		ICMPTypes: r.ICMPTypes, NotOpening: r.NotOpening, States: r.States, Verdict: r.Verdict,
	}
	for _, name := range []string{r.SourceSet, r.DestinationSet} {
		if name == "" {
			continue
		}
		s, known := sets[name]
		if !known {
			return nil, fmt.Errorf("there is no set %q", name)
		}
		if m.Family != "" && m.Family != s.Family {
			return nil, fmt.Errorf("set %q is of family %s, the rule of %s", name, s.Family, m.Family)
		}
		m.Family = s.Family
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	ins, err := alternatives(r.InInterfaces, r.InExcept)
	if err != nil {
		return nil, err
	}
	outs, err := alternatives(r.OutInterfaces, r.OutExcept)
	if err != nil {
		return nil, err
	}
	var all []match
	for _, in := range ins {
		for _, out := range outs {
			m.In, m.Out = in, out
			m.Digest = ""
			m.Digest = digest(m)
			all = append(all, m)
		}
	}
	return all, nil
}

func (m *match) check() error {
	if !slices.Contains([]string{"", "ip6", "ip"}, m.Family) {
		return fmt.Errorf("family %q is none", m.Family)
	}
	if !slices.Contains([]string{"", "tcp", "udp", "icmp6", "icmp"}, m.Protocol) {
		return fmt.Errorf("protocol %q is none", m.Protocol)
	}
	if !slices.Contains([]string{"accept", "drop", "reject"}, m.Verdict) {
		return fmt.Errorf("verdict %q is none", m.Verdict)
	}
	for _, p := range []*ports{&m.DestPort, &m.FromPort} {
		if p.From != 0 && p.To == 0 {
			p.To = p.From
		}
		if p.From < 0 || p.To > 65535 || p.From > p.To || p.From == 0 && p.To != 0 {
			return fmt.Errorf("ports %d to %d are no range", p.From, p.To)
		}
		if p.To != 0 && m.Protocol != "tcp" && m.Protocol != "udp" {
			return errors.New("a port needs protocol tcp or udp")
		}
	}
	if m.NotOpening && m.Protocol != "tcp" {
		return errors.New("not_opening needs protocol tcp")
	}
	for _, t := range m.ICMPTypes {
		if t < 0 || t > 255 || m.Protocol != "icmp6" && m.Protocol != "icmp" {
			return fmt.Errorf("ICMP type %d needs protocol icmp6 or icmp", t)
		}
	}
	for _, s := range m.States {
		if stateBits[s] == 0 {
			return fmt.Errorf("state %q is none", s)
		}
	}
	return nil
}

// alternatives makes of "one of these interfaces" a rule each: sets of nftables take no names that end in a star. No
// restriction is one alternative.
func alternatives(in, except []string) ([]interfaces, error) {
	for _, name := range slices.Concat(in, except) {
		if base := strings.TrimSuffix(name, "*"); base == "" || len(base) > 15 || strings.ContainsAny(base, "*/ \x00") {
			return nil, fmt.Errorf("%q is no interface's name", name)
		}
	}
	if len(in) == 0 {
		return []interfaces{{Except: except}}, nil
	}
	var out []interfaces
	for _, name := range in {
		out = append(out, interfaces{Name: name, Except: except})
	}
	return out, nil
}

// comment is what nftables takes: it has a length, and ends a string at a zero.
func comment(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == '"' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
	for len(s) > 120 {
		s = s[:len(s)-1]
	}
	return strings.ToValidUTF8(s, "")
}

// digestBytes of SHA-256 mark a rule as made from this and nothing else.
const digestBytes = 16

func digest(m match) string {
	data, err := json.Marshal(m)
	if err != nil {
		panic("a rule can't be encoded: " + err.Error()) // strings and numbers only
	}
	sum := sha256.Sum256(append([]byte("1"), data...)) // 1: the way in which rules are written
	return hex.EncodeToString(sum[:digestBytes])
}

// equal compares what is there with what is wanted.
func (t table) equal(want table) bool {
	if t.Dormant != want.Dormant || len(t.Sets) != len(want.Sets) || len(t.Chains) != len(want.Chains) {
		return false
	}
	for name, w := range want.Sets {
		h, there := t.Sets[name]
		if !there || h.Family != w.Family || !slices.Equal(h.Ranges, w.Ranges) {
			return false
		}
	}
	for name, w := range want.Chains {
		h, there := t.Chains[name]
		if !there || !h.fits(w) || h.Accept != w.Accept || !slices.Equal(h.Digests, w.Digests) {
			return false
		}
	}
	return true
}

// fits says whether a chain can stay and be refilled; its policy can be changed in place.
func (c chain) fits(want chain) bool { return c.Hook == want.Hook && c.Priority == want.Priority }
