package tools_test

import (
	"fmt"
	"slices"
	"testing"

	"powernode/store"
	"powernode/tools"
)

// takeAll takes places for a caller until there are none for it, and answers what leaves them.
func takeAll(p *tools.Places, c tools.Caller) (leave []func()) {
	for {
		one, ok := p.Take(c)
		if !ok {
			return leave
		}
		leave = append(leave, one)
	}
}

func TestACallerTakesItsShareOfThePlacesAlone(t *testing.T) {
	t.Parallel()
	var p tools.Places
	token := func(n int) tools.Caller {
		return tools.Caller{ID: "agent", TokenID: store.TokenID(fmt.Sprintf("t-%d", n))}
	}
	noisy := takeAll(&p, token(0))
	if len(noisy) != 250 {
		t.Fatalf("one token takes %d places of 1000, want a quarter", len(noisy))
	}
	var others []func()
	for n := 1; n < 5; n++ {
		others = append(others, takeAll(&p, token(n))...)
	}
	if all := len(noisy) + len(others); all != 910 {
		t.Errorf("five noisy tokens take %d places, want what is not reserved, and ten that the last may have of the reserve", all)
	}
	quiet, ok := p.Take(token(9))
	if !ok {
		t.Fatal("one that asks for its first place has none")
	}
	quiet()
	for _, leave := range slices.Concat(noisy, others) {
		leave()
	}
	if again := takeAll(&p, token(7)); len(again) != 250 {
		t.Errorf("after all have left, one takes %d places, want 250", len(again))
	}
	if byID := takeAll(&p, tools.Caller{ID: "ada"}); len(byID) != 250 {
		t.Errorf("a caller without a token takes %d places, want 250", len(byID))
	}
}
