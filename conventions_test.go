package powernode_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A test that sleeps is slow or flaky, and one that may skip itself proves nothing on the machine where it counts.
func TestNoTestSleepsOrSkips(t *testing.T) {
	t.Parallel()
	forbidden := map[string]string{"time.Sleep": "await a condition", "t.Skip": "fail instead", "t.Skipf": "fail instead", "t.SkipNow": "fail instead"}
	looked := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		looked++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := selector.X.(*ast.Ident); ok {
				if instead, bad := forbidden[x.Name+"."+selector.Sel.Name]; bad {
					t.Errorf("%s: %s.%s: %s", set.Position(selector.Pos()), x.Name, selector.Sel.Name, instead)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if looked < 50 {
		t.Errorf("looked at %d test files alone", looked)
	}
}
