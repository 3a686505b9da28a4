package mcp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"powernode/spec/mcp/fixture"
	"powernode/tools/mcp"
)

const suite = "node_modules/@modelcontextprotocol/conformance"

// check is what the suite says of one requirement.
type check struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"errorMessage"`
}

// conformance runs the suite against a server: what it has found, by scenario, what it has printed, and its exit code.
func conformance(t *testing.T, server, baseline string, args ...string) (found map[string][]check, printed string, code int) {
	t.Helper()
	out := t.TempDir()
	printed, said, code := node(t, filepath.Join(modules, suite, "dist/index.js"),
		append([]string{"server", "--url", server, "-o", out, "--expected-failures", baseline}, args...)...)
	files, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	ok(t, err)
	found = map[string][]check{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		ok(t, err)
		var checks []check
		ok(t, json.Unmarshal(raw, &checks))
		scenario := regexp.MustCompile(`^server-(.*)-\d{4}-\d\d-\d\dT[\d-]+Z$`).FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if scenario == nil {
			t.Fatalf("%s is no scenario's", file)
		}
		found[scenario[1]] = checks
	}
	return found, printed + said, code
}

// onFixture serves the fixture on a port that is free. change may take something from it.
func onFixture(t *testing.T, change func(*mcp.Catalogue)) string {
	t.Helper()
	s, err := fixture.New(zerolog.New(zerolog.NewTestWriter(t)))
	ok(t, err)
	change(&s.Catalogue)
	mux := http.NewServeMux()
	mux.Handle("/mcp", s.HTTP(mcp.HTTPOptions{}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/mcp"
}

func whole(*mcp.Catalogue) {}

// required are the scenarios that a revision requires of a server, and those that the suite runs beside them.
func required(t *testing.T, revision string) (scenarios, beside []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(modules, suite, "requirements", revision+".yaml"))
	ok(t, err)
	var set struct {
		Server    []string `yaml:"server"`
		NotScored []struct {
			Scenario, Leg, Reason string
		} `yaml:"not_scored"`
	}
	ok(t, yaml.Unmarshal(raw, &set))
	for _, s := range set.NotScored {
		if s.Leg == "server" && s.Reason != "extension" { // an extension is not advertised here, and not asked of anybody
			beside = append(beside, s.Scenario)
		}
	}
	return set.Server, beside
}

func TestStackConforms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		revision string
		scored   int
		untested map[string]string
	}{
		{"2025-11-25", 30, map[string]string{"server-sse-polling": "an answer can't be resumed, so none is broken off"}},
		{"2026-07-28", 37, nil},
	} {
		t.Run(tt.revision, func(t *testing.T) {
			t.Parallel()
			found, printed, code := conformance(t, onFixture(t, whole), "baseline.yml", "--requirements", tt.revision)
			if code != 0 {
				t.Errorf("exit code %d:\n%s", code, printed)
			}
			scored, beside := required(t, tt.revision)
			if len(scored) != tt.scored {
				t.Errorf("%s requires %d scenarios, want %d: %v", tt.revision, len(scored), tt.scored, scored)
			}
			passed := 0
			for _, scenario := range append(scored, beside...) {
				n := holds(t, scenario, found[scenario], exceptions(t, "baseline.yml"))
				if n == 0 && tt.untested[scenario] == "" {
					t.Errorf("%s: nothing was checked", scenario)
				}
				passed += n
			}
			t.Logf("%d scenarios and %d beside them, %d checks passed", len(scored), len(beside), passed)
		})
	}
}

// holds fails for what the suite finds, warnings too, and answers how many checks have passed.
func holds(t *testing.T, scenario string, checks []check, excepted map[string]bool) (passed int) {
	t.Helper()
	for _, c := range checks {
		switch {
		case c.Status == "SUCCESS":
			passed++
		case c.Status == "INFO" || excepted[scenario] || excepted[scenario+":"+c.ID]:
		case c.Status == "SKIPPED":
			t.Logf("%s: %s was skipped", scenario, c.ID)
		default:
			t.Errorf("%s: %s: %s: %s", scenario, c.ID, c.Status, c.Error)
		}
	}
	return passed
}

// exceptions are a baseline's entries. Each has a reason.
func exceptions(t *testing.T, baseline string) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(baseline)
	ok(t, err)
	var document yaml.Node
	ok(t, yaml.Unmarshal(raw, &document))
	all := map[string]bool{}
	for _, entry := range document.Content[0].Content[1].Content {
		if entry.LineComment == "" {
			t.Errorf("%s: %s has no reason beside it", baseline, entry.Value)
		}
		all[entry.Value] = true
	}
	return all
}

// A baseline hides what it names, and nothing else: what fails beside it fails, and so does an entry without a failure.
func TestBaselineHidesOnlyWhatStillFails(t *testing.T) {
	t.Parallel()
	stale := filepath.Join(t.TempDir(), "stale.yml")
	ok(t, os.WriteFile(stale, []byte("server:\n  - tools-call-simple-text\n"), 0o600))
	without := func(c *mcp.Catalogue) {
		c.Tools = slices.DeleteFunc(c.Tools, func(t mcp.Tool) bool { return t.Listed.Name == "test_simple_text" })
	}
	for _, tt := range []struct {
		name, baseline string
		change         func(*mcp.Catalogue)
		code           int
	}{
		{"a failure", "baseline.yml", without, 1},
		{"a stale entry", stale, whole, 1},
		{"a failure that is expected", stale, without, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, printed, code := conformance(t, onFixture(t, tt.change), tt.baseline, "--scenario", "tools-call-simple-text")
			if code != tt.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tt.code, printed)
			}
		})
	}
}

// lend serves the production binary's face to who can't send a token: it adds the header and changes nothing else.
func lend(t *testing.T) string {
	t.Helper()
	to, err := url.Parse(shared.url)
	ok(t, err)
	connections := &http.Transport{} // its own: who closes a test server closes those of the default one
	forward := &httputil.ReverseProxy{FlushInterval: -1, Transport: connections, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+shared.token)
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Whole before it goes on: an answer that came before the end of the body was seen would close it.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		proxy.Close()
		connections.CloseIdleConnections()
	})
	return proxy.URL + to.Path
}

func TestProductionBinaryConforms(t *testing.T) {
	t.Parallel()
	server := lend(t)
	for revision, scenarios := range map[string][]string{
		"2025-11-25": {"server-initialize", "ping", "logging-set-level", "tools-list", "resources-list", "prompts-list", "server-sse-multiple-streams",
			"dns-rebinding-protection", "server-session-lifecycle"},
		"2026-07-28": {"server-stateless", "tools-list", "resources-list", "prompts-list", "caching", "sep-2164-resource-not-found",
			"server-sse-multiple-streams", "dns-rebinding-protection", "http-header-validation", "input-required-result-unsupported-methods"},
	} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			passed := 0
			for _, scenario := range scenarios {
				baseline := "baseline.yml"
				if strings.HasPrefix(scenario, "server-stateless") {
					baseline = "production.yml"
				}
				found, printed, code := conformance(t, server, baseline, "--scenario", scenario, "--spec-version", revision)
				if code != 0 {
					t.Errorf("%s: exit code %d:\n%s", scenario, code, printed)
				}
				n := holds(t, scenario, found[scenario], exceptions(t, baseline))
				if n == 0 {
					t.Errorf("%s: nothing was checked", scenario)
				}
				passed += n
			}
			t.Logf("%d scenarios, %d checks passed", len(scenarios), passed)
		})
	}
}
