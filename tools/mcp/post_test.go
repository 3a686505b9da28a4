package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/mark3labs/mcp-go/mcp"
	"github.com/rs/zerolog"

	"powernode/tools"
)

// slow is an endpoint with one tool, which waits until it is let go.
func slow(t *testing.T) (h *endpoint, letGo func()) {
	t.Helper()
	gate := make(chan struct{})
	s := &Server{Name: "slow", Version: "1", Log: zerolog.New(zerolog.NewTestWriter(t)), Catalogue: Catalogue{Tools: []Tool{{Listed: sdk.NewTool("wait"),
		Kind: func(json.RawMessage) Kind { return Waits }, Call: func(ctx context.Context, _ *Call) (*sdk.CallToolResult, error) {
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return sdk.NewToolResultText("waited"), nil
		}}}}}
	return s.HTTP(HTTPOptions{}).(*endpoint), func() { close(gate) }
}

func send(t *testing.T, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestCallThatWaitsForLongShowsThatItIsAlive(t *testing.T) {
	t.Parallel()
	h, letGo := slow(t)
	h.keep = time.Millisecond
	server := httptest.NewServer(h)
	defer server.Close()
	response := send(t, server.URL)
	defer response.Body.Close() // a test's
	lines := bufio.NewScanner(response.Body)
	for alive := 0; alive < 2; {
		if !lines.Scan() {
			t.Fatal("the stream ended")
		}
		if lines.Text() == ": alive" {
			alive++
		}
	}
	letGo()
	last := ""
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			last = lines.Text()
		}
	}
	if !strings.Contains(last, `"waited"`) {
		t.Errorf("answer %s", last)
	}
}

func TestMoreThanAtOnceIsToldToComeAgain(t *testing.T) {
	t.Parallel()
	h, letGo := slow(t)
	letGo()
	server := httptest.NewServer(h)
	defer server.Close()
	var leave []func()
	for {
		one, ok := h.Places.Take(tools.Caller{}) // as slow's requests are
		if !ok {
			break
		}
		leave = append(leave, one)
	}
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		response := send(t, server.URL)
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Error(err)
		}
		response.Body.Close() // it was read
		if response.StatusCode != want || (want == http.StatusServiceUnavailable) != (response.Header.Get("Retry-After") != "") {
			t.Errorf("status %d, want %d", response.StatusCode, want)
		}
		leave[0]()
	}
}

func TestSessionIDSpellsWhatAClientDeclared(t *testing.T) {
	t.Parallel()
	form, opens := &struct{}{}, &struct{}{}
	for _, want := range []sdk.ClientCapabilities{
		{},
		{Elicitation: &sdk.ElicitationCapability{Form: form}},
		{Elicitation: &sdk.ElicitationCapability{URL: opens}},
		{Elicitation: &sdk.ElicitationCapability{Form: form, URL: opens}, Sampling: &sdk.SamplingCapability{}},
	} {
		id := newSessionID(want)
		got, ok := sessionCapabilities(id)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
	for _, id := range []string{"", "x", ".e", "1234.", strings.Repeat("a", 26) + ".", strings.Repeat("A", 26), strings.Repeat("A", 26) + ".x"} {
		if _, ok := sessionCapabilities(id); ok {
			t.Errorf("%q was taken", id)
		}
	}
}

func FuzzSessionID(f *testing.F) {
	f.Add(newSessionID(sdk.ClientCapabilities{Sampling: &sdk.SamplingCapability{}}))
	f.Add("ABCDEFGHIJKLMNOPQRSTUVWXYZ.eusr")
	f.Fuzz(func(t *testing.T, id string) {
		if c, ok := sessionCapabilities(id); !ok && (c.Elicitation != nil || c.Sampling != nil || c.Roots != nil) {
			t.Fatalf("%q is refused and declares something", id)
		}
	})
}
