package nodeapi_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"

	"powernode/nodeapi"
	"powernode/nodeapi/nodeapitest"
)

func TestFetchCATakesThePinnedOneAlone(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	got, err := nodeapi.FetchCA(t.Context(), p.URL, p.CASHA256())
	if err != nil || got != p.CAPEM {
		t.Errorf("got %q, %v; want %q", got, err, p.CAPEM)
	}
	for name, tt := range map[string]struct{ url, sum, text string }{
		"another CA":  {p.URL, strings.Repeat("0", 64), "presented no CA certificate"},
		"no hash":     {p.URL, "abc", "64 lower-case hex digits"},
		"no TLS":      {"http" + strings.TrimPrefix(p.URL, "https"), p.CASHA256(), "must be https://HOST:PORT"},
		"nobody":      {"https://127.0.0.1:1", p.CASHA256(), "reach the platform"},
		"another one": {nodeapitest.New(t).URL, p.CASHA256(), "presented no CA certificate"},
	} {
		if _, err := nodeapi.FetchCA(t.Context(), tt.url, tt.sum); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q", name, err, tt.text)
		}
	}
}

func TestAgentProgramIsServedToEverybodyByItsSHA256(t *testing.T) {
	t.Parallel()
	p := nodeapitest.New(t)
	program := bytes.Repeat([]byte("agent"), 1000)
	sum := sha256.Sum256(program)
	p.AddArtifact(program)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // as the enrolment command does
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{hex.EncodeToString(sum[:]): http.StatusOK, strings.Repeat("0", 64): http.StatusNotFound, "x": http.StatusUnprocessableEntity} {
		res, err := client.Get(p.URL + nodeapi.AgentProgramPath + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != want || (want == http.StatusOK) != bytes.Equal(body, program) {
			t.Errorf("%s: HTTP %d, %d bytes, %v; want %d", path, res.StatusCode, len(body), err, want)
		}
	}
}
