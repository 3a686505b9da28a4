package local

import (
	"net/netip"
	"testing"
)

func TestPlaceRestsBeforeItIsUsedAgain(t *testing.T) {
	t.Parallel()
	full := make([]int, 0, lastPlace)
	for n := firstPlace; n <= lastPlace; n++ {
		full = append(full, n)
	}
	for _, tt := range []struct {
		name  string
		next  int
		taken []int
		want  int // 0: refused
	}{
		{"the first", 0, nil, 2},
		{"the next, though lower ones are free", 7, []int{2}, 7},
		{"past those that are taken", 7, []int{2, 7, 8}, 9},
		{"from the start after the last", 255, []int{2, 3}, 4},
		{"none is free", 7, full, 0},
		{"the only free one", 7, full[:len(full)-1], 254},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := installation{Next: tt.next}.place(tt.taken)
			if got != tt.want || (err != nil) != (tt.want == 0) {
				t.Errorf("got %d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

func TestNamesFitTheKernel(t *testing.T) {
	t.Parallel()
	inst := installation{
		ID: "0a1b2c3d", Prefix6: netip.MustParsePrefix("fd00:1:2:3::/64"), Prefix4: netip.MustParsePrefix("100.64.7.0/24"),
	}
	for _, name := range []string{inst.bridge(), inst.port(lastPlace)} {
		if len(name) > 15 {
			t.Errorf("link name %s has %d characters", name, len(name))
		}
	}
	got := inst.addresses(lastPlace)
	if want := [2]netip.Addr{netip.MustParseAddr("fd00:1:2:3::fe"), netip.MustParseAddr("100.64.7.254")}; [2]netip.Addr(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
