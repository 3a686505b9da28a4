package args

import (
	"slices"
	"testing"
)

func TestRender(t *testing.T) {
	own := map[string]string{"a": "1", "controllers": "*"}
	for name, c := range map[string]struct{ extra, want []string }{
		"own":      {nil, []string{"--a=1", "--controllers=*"}},
		"override": {[]string{"a=2"}, []string{"--a=2", "--controllers=*"}},
		"dashes":   {[]string{"--a=2"}, []string{"--a=2", "--controllers=*"}},
		"add":      {[]string{"controllers+=x"}, []string{"--a=1", "--controllers=*,x"}},
		"bool":     {[]string{"b"}, []string{"--a=1", "--b=true", "--controllers=*"}},
		"equals":   {[]string{"f=x=y"}, []string{"--a=1", "--controllers=*", "--f=x=y"}},
	} {
		if got := Render(own, c.extra); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if own["a"] != "1" {
		t.Error("Render changed its argument")
	}
}
