package powernode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "powernode/"

// goPackage is what `go list` says of a package, without its tests.
type goPackage struct {
	ImportPath string
	Dir        string
	Doc        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

// rule is a border: packages below Package must not import what Not names. A name that ends in a slash, or in "...", is
// everything below it.
type rule struct {
	Package string
	Not     []string
	But     []string // allowed all the same
	Except  []string // packages below Package that the rule is not for
	Deep    bool     // also through other packages
	Why     string
}

var rules = []rule{
	{Package: "sdwan", Not: []string{"os", "net", "database/sql", "github.com/rs/zerolog", "crypto/rand", "math/rand...", "log..."},
		Why: "the network's logic is pure: values in, values out"},
	{Package: "sdwan", Not: []string{module}, Why: "everybody's lowest layer"},
	{Package: "schema", Not: []string{module}, Why: "everybody's lowest layer"},
	{Package: "store", Not: []string{module}, But: []string{"schema", "store..."}, Why: "rows know no rules"},
	{Package: "platform", Not: []string{module + "tools...", "github.com/mark3labs/mcp-go...", module + "console...", module + "cmd..."}, Deep: true,
		Why: "the domain is reached by every surface and knows none"},
	{Package: "platform", Not: []string{module + "nodeapi..."}, Except: []string{"platform/provider/local"},
		Why: "cmd binds the agent API to the platform; local alone hands a machine its enrolment, in the agent's type"},
	{Package: "platform", Not: []string{"net/http..."}, Except: []string{"platform/fleet"},
		Why: "no HTTP in the domain, but for artefacts that it fetches"},
	{Package: "platform/signal", Not: []string{module + "platform..."}, Why: "every concern emits signals"},
	{Package: "platform/governance", Not: []string{module + "platform..."}, But: []string{"platform/signal", "platform/governance..."}, Why: "who may decides for all concerns and knows none"},
	{Package: "platform/network", Not: []string{module + "platform..."}, But: []string{"platform/signal", "platform/network..."}, Why: "clusters stand on networks, not the other way"},
	{Package: "platform/provider", Not: []string{module + "platform...", module + "store..."}, But: []string{"platform/provider..."}, Why: "an adapter knows machines, no rows"},
	{Package: "nodeapi", Not: []string{module}, But: []string{"sdwan", "schema", "nodeapi..."}, Deep: true, Why: "agents link it: its server takes an interface"},
	{Package: "agent", Not: []string{module + "store...", "github.com/mattn/go-sqlite3", "database/sql", module + "platform...", module + "tools..."}, Deep: true,
		Why: "a machine has no database and no rules of its own"},
	{Package: "cmd/powernode-agent", Not: []string{module + "store...", "github.com/mattn/go-sqlite3", "github.com/mark3labs/mcp-go..."}, Deep: true,
		Why: "the agent's binary stays small"},
	{Package: "tools", Not: []string{module + "nodeapi...", module + "agent...", module + "cmd...", module + "console...", module + "platform/provider/local..."},
		Except: []string{"tools/toolstest"}, Why: "verbs speak to the domain"},
	{Package: "", Not: []string{"github.com/mark3labs/mcp-go..."}, Except: []string{"tools/mcp", "spec"}, Why: "the SDK can change without touching a verb"},
	{Package: "", Not: []string{"github.com/mattn/go-sqlite3", "database/sql..."}, Except: []string{"store", "spec"}, Why: "SQL stands in one package"},
	{Package: "", Not: []string{module + "spec..."}, Except: []string{"spec"}, Why: "the product knows no test"},
	{Package: "", Not: []string{"testing", module + "internal/golden", module + "internal/netnstest", module + "store/storetest", module + "tools/toolstest", module + "nodeapi/nodeapitest", module + "platform/provider/providertest"},
		Except: []string{"internal/golden", "internal/netnstest", "store/storetest", "tools/toolstest", "nodeapi/nodeapitest", "platform/provider/providertest"}, Why: "helpers of tests are for tests"},
	{Package: "spec/rig", Not: []string{module}, Why: "it knows what a user can see"},
	{Package: "spec/demo", Not: []string{module}, But: []string{"spec/rig"}, Why: "it is a user"},
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	packages := list(t)
	for _, r := range rules {
		for _, fault := range r.faults(packages) {
			t.Errorf("%s (%s)", fault, r.Why)
		}
	}
}

// A rule that fits no package guards nothing.
func TestEveryRuleIsForAPackage(t *testing.T) {
	t.Parallel()
	packages := list(t)
	for _, r := range rules {
		for _, name := range append([]string{r.Package}, r.Except...) {
			if !slices.ContainsFunc(packages, func(p goPackage) bool { return below(p.ImportPath, name) }) {
				t.Errorf("no package is below %q", name)
			}
		}
	}
}

func TestARuleSeesWhatIsForbidden(t *testing.T) {
	t.Parallel()
	packages := []goPackage{
		{ImportPath: module + "sdwan", Imports: []string{"net/netip", "net"}},
		{ImportPath: module + "agent/k3s", Imports: []string{"os"}, Deps: []string{module + "store"}},
	}
	for _, tt := range []struct {
		name string
		rule rule
		want int
	}{
		{"a named package", rule{Package: "sdwan", Not: []string{"net"}}, 1},
		{"everything below a name", rule{Package: "sdwan", Not: []string{"net..."}}, 2},
		{"through others", rule{Package: "agent", Not: []string{module + "store..."}, Deep: true}, 1},
		{"not through others", rule{Package: "agent", Not: []string{module + "store..."}}, 0},
		{"an exception", rule{Package: "", Not: []string{"net"}, Except: []string{"sdwan"}}, 0},
		{"what is allowed all the same", rule{Package: "agent", Not: []string{module}, But: []string{"store"}, Deep: true}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.rule.faults(packages); len(got) != tt.want {
				t.Errorf("faults are %q, want %d", got, tt.want)
			}
		})
	}
}

func TestSdwanHasNoClock(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if !below(p.ImportPath, "sdwan") {
			continue
		}
		for _, name := range p.GoFiles {
			for _, call := range clocks(t, filepath.Join(p.Dir, name)) {
				t.Errorf("%s calls %s: the time is an argument", name, call)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// The product does not know what takes K3s' place in its tests.
func TestWhatTakesK3sPlaceIsNamedInTestsOnly(t *testing.T) {
	t.Parallel()
	name := []byte("k3s" + "rig")
	apart := []string{"spec", ".ci", ".git", ".cache", "bin", "node_modules", "Makefile"}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(apart, path):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a file that a test beside this one made and removed
		}
		if err == nil && bytes.Contains(bytes.ToLower(content), name) {
			t.Errorf("%s names the program that takes K3s' place", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// list asks the go command for every package of the module.
func list(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,GoFiles,Imports,Deps", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, &stderr)
	}
	var packages []goPackage
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, p)
	}
}

func (r rule) faults(packages []goPackage) []string {
	var out []string
	for _, p := range packages {
		if !below(p.ImportPath, r.Package) || slices.ContainsFunc(r.Except, func(name string) bool { return below(p.ImportPath, name) }) {
			continue
		}
		imports := p.Imports
		if r.Deep {
			imports = append(slices.Clone(imports), p.Deps...)
			slices.Sort(imports)
			imports = slices.Compact(imports)
		}
		for _, path := range imports {
			if named(path, r.Not, "") && !named(path, r.But, module) {
				out = append(out, fmt.Sprintf("%s imports %s", p.ImportPath, path))
			}
		}
	}
	return out
}

// below says whether a package of ours is name, or stands below it.
func below(path, name string) bool {
	rest, ours := strings.CutPrefix(path, module)
	return ours && (name == "" || rest == name || strings.HasPrefix(rest, name+"/"))
}

func named(path string, names []string, prefix string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		name = prefix + name
		if stem, all := strings.CutSuffix(name, "..."); all {
			return path == stem || strings.HasPrefix(path, stem+"/")
		}
		return path == name || (strings.HasSuffix(name, "/") && strings.HasPrefix(path, name))
	})
}

// clocks are a file's uses of the clock.
func clocks(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, ok := selector.X.(*ast.Ident)
		if ok && from.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Tick", "NewTimer", "NewTicker", "Sleep", "AfterFunc"}, selector.Sel.Name) {
			out = append(out, "time."+selector.Sel.Name)
		}
		return true
	})
	return out
}
