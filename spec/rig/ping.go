package rig

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Ping is a ping that goes on from a machine to an address.
type Ping struct {
	stream *Stream
	every  time.Duration
}

// StartPing starts it and waits until it is answered.
func (i *Installation) StartPing(ctx context.Context, machine, address string, every time.Duration) (*Ping, error) {
	s, err := i.Stream(ctx, machine, "ping", "-n", "-i", strconv.FormatFloat(every.Seconds(), 'f', 3, 64), address)
	if err != nil {
		return nil, err
	}
	p := &Ping{stream: s, every: every}
	if err := p.AwaitMore(ctx, 3); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("ping from %s to %s: %w", machine, address, err)
	}
	return p, nil
}

// AwaitMore waits for further answers.
func (p *Ping) AwaitMore(ctx context.Context, n int) error {
	begin := len(p.answered())
	return p.stream.Await(ctx, "answers", 20*time.Second, func([]string) string {
		if have := len(p.answered()) - begin; have < n {
			return fmt.Sprintf("%d of %d came", have, n)
		}
		return ""
	})
}

var sequence = regexp.MustCompile(`icmp_seq=(\d+) (?:ttl|hlim)=`)

// answered are the sequence numbers that were answered, as they came.
func (p *Ping) answered() []int {
	var out []int
	for _, line := range p.stream.Lines() {
		if m := sequence.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[1]) // digits
			out = append(out, n)
		}
	}
	return out
}

// Loss is what a ping missed.
type Loss struct {
	Sent, Lost int
	Longest    time.Duration // without an answer
}

// Stop ends the ping. It counts up to the last answer: what was on its way then is not lost.
func (p *Ping) Stop() (Loss, error) {
	err := p.stream.Close()
	seen, last := map[int]bool{}, 0
	for _, n := range p.answered() {
		seen[n] = true
		last = max(last, n)
	}
	out, gap, longest := Loss{Sent: last}, 0, 0
	for n := 1; n <= last; n++ {
		if seen[n] {
			gap = 0
			continue
		}
		gap++
		out.Lost++
		longest = max(longest, gap)
	}
	out.Longest = time.Duration(longest) * p.every
	return out, err
}
