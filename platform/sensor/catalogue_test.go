package sensor_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"powernode/platform/sensor"
	"powernode/platform/signal"
)

// emitting are the folders whose code may emit signals.
var emitting = []string{"platform", "tools", "cmd"}

// later are the kinds of what no code of ours does yet: the depth of SDWAN and of clusters, federation and pools. One of
// them that is emitted has to leave this list, so that the list tells the truth.
var later = strings.Fields(`
	federation.peer.heartbeat_stale federation.peer.accepted federation.peer.revoked
	system.pool.exhausted system.pool.claimed system.pool.released system.pool.member_ready
	system.sdwan_bgp_session_unhealthy system.sdwan_bgp_not_measured system.sdwan_portmap_orphaned
	system.sdwan_key_rotated system.sdwan_key_rotation_failed system.sdwan_access_revoked
	system.k3s_etcd_space system.k3s_snapshot_stale system.k3s_certificate_expiring
	system.k3s_node_moved system.k3s_token_rotated system.k3s_token_rotation_failed
	system.k3s_snapshot_created system.k3s_snapshot_failed system.k3s_restore_started system.k3s_restore_completed system.k3s_restore_failed
	system.k3s_upgrade_started system.k3s_upgrade_completed system.k3s_upgrade_aborted system.k3s_upgrade_failed system.k3s_upgrade_paused
	system.k3s_api_vip_failed_over system.cluster_bootstrap.pod_subnet_prefix_ignored`)

// readers name kinds that others emit.
var readers = []string{"signal/catalogue.go", "sensor/sweep.go", "sensor/attribute.go", "tools/remedies.go"}

func isReader(path string) bool {
	return slices.ContainsFunc(readers, func(r string) bool { return strings.HasSuffix(filepath.ToSlash(path), r) })
}

// words are the kinds that the code names where it emits, with the places.
func words(t *testing.T) (named map[string][]string, closed map[string]bool) {
	t.Helper()
	named, closed = map[string][]string{}, map[string]bool{}
	root := filepath.Join("..", "..")
	constants := map[string]string{} // by package folder and name
	var files []*ast.File
	var folders []string
	set := token.NewFileSet()
	for _, folder := range emitting {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.HasSuffix(filepath.ToSlash(path), readers[0]) {
				return err
			}
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			files, folders = append(files, file), append(folders, filepath.Dir(path))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for j, name := range spec.Names {
					if j < len(spec.Values) {
						if text, ok := literal(spec.Values[j]); ok {
							constants[folders[i]+"."+name.Name] = text
						}
					}
				}
			}
			if n == nil {
				return false
			}
			at := set.Position(n.Pos())
			if text, ok := literal(n); ok && signal.Known(text) && (!isReader(at.Filename) || text == "fleet.remediation_stuck") {
				named[text] = append(named[text], at.String())
			}
			if pair, ok := n.(*ast.KeyValueExpr); ok {
				key, named := pair.Key.(*ast.Ident)
				if text, ok := literal(pair.Value); ok && named && key.Name == "Kind" && strings.Contains(text, ".") && !signal.Known(text) {
					t.Errorf("%s emits %s, which is not in the catalogue", at, text)
				}
			}
			return true
		})
	}
	for i, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if called, ok := call.Fun.(*ast.SelectorExpr); !ok || called.Sel.Name != "Close" || len(call.Args) < 5 {
				return true
			}
			switch kind := call.Args[4].(type) {
			case *ast.BasicLit:
				text, _ := literal(kind)
				closed[text] = true
			case *ast.Ident:
				closed[constants[folders[i]+"."+kind.Name]] = true
			}
			return true
		})
	}
	return named, closed
}

func literal(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

func TestEveryKindIsEmittedOrIsSaidToComeLater(t *testing.T) {
	t.Parallel()
	named, _ := words(t)
	closes := map[string]bool{}
	for _, k := range signal.Catalogue {
		closes[k.Closes] = true
	}
	for kind := range signal.Catalogue {
		switch emitted := len(named[kind]) > 0; {
		case closes[kind]: // comes with the kind that it closes
		case emitted && slices.Contains(later, kind):
			t.Errorf("%s is named at %v, and the list says that it comes later", kind, named[kind])
		case !emitted && !slices.Contains(later, kind):
			t.Errorf("no code emits %s", kind)
		}
	}
}

func TestEveryKindThatOpensHasAWayToClose(t *testing.T) {
	t.Parallel()
	named, closed := words(t)
	bySensors := map[string]bool{}
	for _, s := range sensor.New(nil, nil, nil).Sensors() {
		for _, kind := range s.Kinds {
			bySensors[kind] = true
			if signal.Catalogue[kind].Closes == "" {
				t.Errorf("sensor %s says that it opens %s, which opens nothing", s.Name, kind)
			}
		}
	}
	for kind, k := range signal.Catalogue {
		if k.Closes == "" || len(named[kind]) == 0 || bySensors[kind] || closed[kind] {
			continue
		}
		another := false // kinds that share a closing one share their fingerprint
		for other, o := range signal.Catalogue {
			another = another || (other != kind && o.Closes == k.Closes && closed[other])
		}
		if !another && !closesByVariable[kind] {
			t.Errorf("nothing closes %s, which is opened at %v", kind, named[kind])
		}
	}
}

// closesByVariable are closed in a loop over kinds, which the walk doesn't follow; a test of each package does.
var closesByVariable = map[string]bool{
	"system.k3s_ambiguous_cluster_join_refused": true, // platform/cluster/handshake.go
	"system.k3s_join_blocked":                   true,
	"system.governance_gap":                     true, // a sensor of package tools
}
