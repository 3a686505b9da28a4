package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestResultIsShownAsLinesAndTables(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, result, want string }{
		{"single values and an object", `{"network":{"name":"a","mtu":1380,"options":{"x":true},"labels":{}},"hint":null,"warnings":[]}`, `
network.name       a
network.mtu        1380
network.options.x  true
network.labels     -
hint               -
warnings           -
`},
		{"a list of objects", `{"nodes":[{"name":"a","enabled":true,"tags":["x","y"]},{"name":"b","config":{"k":1}}],"count":2,"next_cursor":null}`, `
count        2
next_cursor  -

nodes
NAME  ENABLED  TAGS  CONFIG
a     true     x, y  -
b     -        -     k=1
`},
		{"a list inside an object", `{"node":{"name":"a","peers":[{"id":"1"}]}}`, `
node.name  a

node.peers
ID
1
`},
		{"no terminal is written to", `{"name":"a\u001b[31m\nb"}`, `
name  a�[31m b
`},
		{"big numbers stay whole", `{"revision":9007199254740993}`, `
revision  9007199254740993
`},
		{"an empty object", `{}`, "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := printTable(&out, []byte(tt.result), 0); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTableFitsATerminalAndKeepsIDsWhole(t *testing.T) {
	t.Parallel()
	const id = "01a22d3d-8c4a-70d8-bb22-7761671e28e8"
	const rows = `{"nodes":[{"id":"` + id + `","name":"a-node-of-a-long-name-that-goes-on","status":"running","target":{"cluster_id":"x","reason":null,` +
		`"more":{"k":1},"tags":["a"]},"peers":[{"id":"1"},{"id":"2"}],"description":"what nobody reads to its end, for it is long"},{"id":"` + id + `"}]}`
	for _, tt := range []struct {
		name  string
		width int
		want  string
	}{
		{"no terminal", 0, `ID                                    NAME                                STATUS   TARGET                                   PEERS      DESCRIPTION
01a22d3d-8c4a-70d8-bb22-7761671e28e8  a-node-of-a-long-name-that-goes-on  running  cluster_id=x reason=- more={…} tags=[1]  2 entries  what nobody reads to its end, for it is long
01a22d3d-8c4a-70d8-bb22-7761671e28e8  -                                   -        -                                        -          -
`},
		{"100 columns", 100, `ID                                    NAME          STATUS   TARGET         PEERS      DESCRIPTION
01a22d3d-8c4a-70d8-bb22-7761671e28e8  a-node-of-a…  running  cluster_id=x…  2 entries  what nobody …
01a22d3d-8c4a-70d8-bb22-7761671e28e8  -             -        -              -          -
`},
		{"a narrow one", 60, `ID                                    NAME      STATUS
01a22d3d-8c4a-70d8-bb22-7761671e28e8  a-node-…  running
01a22d3d-8c4a-70d8-bb22-7761671e28e8  -         -
(no room for TARGET, PEERS, DESCRIPTION: --output json has all)
`},
		{"narrower than an id", 20, `ID
01a22d3d-8c4a-70d8-bb22-7761671e28e8
01a22d3d-8c4a-70d8-bb22-7761671e28e8
(no room for NAME, STATUS, TARGET, PEERS, DESCRIPTION: --output json has all)
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := printTable(&out, []byte(rows), tt.width); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff("\nnodes\n"+tt.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for line := range strings.Lines(out.String()) {
				if n := utf8.RuneCountInString(strings.TrimSpace(line)); tt.width >= 60 && !strings.HasPrefix(line, "(") && n > tt.width {
					t.Errorf("a line of %d characters in %d columns: %s", n, tt.width, line)
				}
			}
		})
	}
}

func TestAnswerHoldsNothingThatATerminalObeys(t *testing.T) {
	t.Parallel()
	said := "a\u009b31m\u202eb\u007f\x1b]52;c;é日\U0001f600\ufffd"
	result, err := json.Marshal(map[string]string{"name": said})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printEnvelope(&out, result, nil); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\u009b\u202e\u007f\x1b") || !strings.Contains(out.String(), "é日\U0001f600") {
		t.Errorf("printed %q", out.String())
	}
	var again struct{ Data struct{ Name string } }
	if err := json.Unmarshal(out.Bytes(), &again); err != nil || again.Data.Name != said {
		t.Errorf("a program reads %q, %v", again.Data.Name, err)
	}
}
