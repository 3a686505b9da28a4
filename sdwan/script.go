package sdwan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// FilterPriority is that of our base chains: before other tables' filter chains, after translation of destinations.
const FilterPriority = -10

// Script is the table as text that nft reads. It is what a person compares and what `nft -c` checks; the agent
// writes the same rules over netlink.
func (f Firewall) Script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", f.Table)
	for _, s := range f.Sets {
		kind := "ipv6_addr"
		if s.Family == familyIPv4 {
			kind = "ipv4_addr"
		}
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\tflags interval\n", s.Name, kind)
		if len(s.Prefixes) > 0 {
			b.WriteString("\t\telements = { ")
			for i, p := range s.Prefixes {
				if i > 0 {
					b.WriteString(",\n\t\t\t     ")
				}
				b.WriteString(p.String())
			}
			b.WriteString(" }\n")
		}
		b.WriteString("\t}\n\n")
	}
	chains := []struct {
		hook  string
		rules []FirewallRule
	}{{"input", f.Input}, {"forward", f.Forward}, {"output", f.Output}}
	for i, c := range chains {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype filter hook %s priority %d; policy accept;\n", c.hook, c.hook, FilterPriority)
		for _, r := range c.rules {
			for _, line := range r.lines() {
				fmt.Fprintf(&b, "\t\t%s\n", line)
			}
		}
		b.WriteString("\t}\n")
		if i < len(chains)-1 {
			b.WriteString("\n")
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// lines are a rule in nft's words: several lines where interfaces have a wildcard, which a set of names can't hold.
func (r FirewallRule) lines() []string {
	var out []string
	for _, in := range anyInterface("iifname", r.InInterfaces) {
		for _, to := range anyInterface("oifname", r.OutInterfaces) {
			words := []string{in}
			words = append(words, noInterface("iifname", r.InExcept)...)
			words = append(words, to)
			words = append(words, noInterface("oifname", r.OutExcept)...)
			words = append(words, r.addressWords()...)
			words = append(words, r.protocolWords()...)
			if len(r.States) > 0 {
				words = append(words, "ct state "+strings.Join(r.States, ","))
			}
			words = append(words, r.Verdict)
			if r.Comment != "" {
				words = append(words, "comment "+strconv.Quote(r.Comment))
			}
			words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
			out = append(out, strings.Join(words, " "))
		}
	}
	return out
}

func anyInterface(key string, names []string) []string {
	if len(names) == 0 {
		return []string{""}
	}
	var out, plain []string
	for _, n := range names {
		if strings.HasSuffix(n, "*") {
			out = append(out, key+" "+strconv.Quote(n))
			continue
		}
		plain = append(plain, strconv.Quote(n))
	}
	switch len(plain) {
	case 0:
		return out
	case 1:
		return append([]string{key + " " + plain[0]}, out...)
	}
	return append([]string{key + " { " + strings.Join(plain, ", ") + " }"}, out...)
}

func noInterface(key string, names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, key+" != "+strconv.Quote(n))
	}
	return out
}

func (r FirewallRule) addressWords() []string {
	var out []string
	if r.SourceSet != "" {
		out = append(out, r.Family+" saddr @"+r.SourceSet)
	}
	if r.DestinationSet != "" {
		out = append(out, r.Family+" daddr @"+r.DestinationSet)
	}
	if len(out) > 0 || r.Family == "" {
		return out
	}
	if r.Family == familyIPv4 {
		return []string{"meta nfproto ipv4"}
	}
	return []string{"meta nfproto ipv6"}
}

func (r FirewallRule) protocolWords() []string {
	switch r.Protocol {
	case "":
		return nil
	case "icmp6", "icmp":
		return []string{icmpWords(r.Protocol, r.ICMPTypes)}
	}
	var out []string
	if r.SourcePortFrom != 0 {
		out = append(out, r.Protocol+" sport "+ports(r.SourcePortFrom, r.SourcePortTo))
	}
	if r.PortFrom != 0 {
		out = append(out, r.Protocol+" dport "+ports(r.PortFrom, r.PortTo))
	}
	if r.NotOpening {
		out = append(out, "tcp flags & (fin | syn | rst | ack) != syn")
	}
	if len(out) == 0 {
		return []string{"meta l4proto " + r.Protocol}
	}
	return out
}

func icmpWords(protocol string, types []int) string {
	name := map[string]string{"icmp6": "icmpv6", "icmp": "icmp"}[protocol]
	if len(types) == 0 {
		return "meta l4proto " + map[string]string{"icmp6": "ipv6-icmp", "icmp": "icmp"}[protocol]
	}
	text := make([]string, len(types))
	for i, t := range types {
		text[i] = strconv.Itoa(t)
	}
	return name + " type { " + strings.Join(text, ", ") + " }"
}

func ports(from, to int) string {
	if to <= from {
		return strconv.Itoa(from)
	}
	return fmt.Sprintf("%d-%d", from, to)
}
