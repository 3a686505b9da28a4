package tools

import "sync"

const (
	// atOnce is how many requests over HTTP are worked on at once, oneCaller how many of them may be one credential's.
	atOnce    = 1000
	oneCaller = atOnce / 4
	// reserved places are for callers that hold fewer than modest: however many are noisy, who asks little is answered.
	reserved = atOnce / 10
	modest   = 10
)

// Places are how many requests are worked on at once, with a share for each caller: one that floods the platform takes
// nothing from the others. The zero value is all of them, free.
type Places struct {
	mu    sync.Mutex
	taken int
	by    map[string]int
}

// Take takes a place for a caller's request, until it is left; ok is false where there is none for that caller now. The key
// is the credential, and who calls where there is none.
func (p *Places) Take(c Caller) (leave func(), ok bool) {
	key := string(c.TokenID)
	if key == "" {
		key = c.ID
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.by[key]
	if own >= oneCaller || p.taken >= atOnce || p.taken >= atOnce-reserved && own >= modest {
		return nil, false
	}
	if p.by == nil {
		p.by = map[string]int{}
	}
	p.by[key]++
	p.taken++
	return func() { p.leave(key) }, true
}

func (p *Places) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[key]--; p.by[key] == 0 {
		delete(p.by, key)
	}
}
