// Command bench measures what an assistant waits for, against a bare mcp-go server in the same run on the same machine:
// one that validates one schema and inserts one row with synchronous=FULL, and does nothing else. Figures are ratios;
// nothing is asserted. As root it also measures from a verb's commit to the change on a machine.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"powernode/spec/rig"
)

const (
	sequential = 300
	pipelined  = 1000
	starts     = 9
	changes    = 50
)

func main() {
	bin := flag.String("bin", "bin", "folder with powernode and powernode-agent")
	bare := flag.String("bare", "", "be the bare server, with its database in this folder")
	flag.Parse()
	ctx := context.Background()
	run := func() error { return bench(ctx, *bin) }
	if *bare != "" {
		run = func() error { return serveBare(*bare) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// peer is one of the two servers: how it is started, and its one-row call.
type peer struct {
	name    string
	command string
	args    []string
	verb    string
	call    func(n int) any
}

// figures are what was measured of a peer.
type figures struct {
	start, median, p95 time.Duration
	perSecond          float64
}

func bench(ctx context.Context, bin string) (err error) {
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "powernode-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	i := rig.New(bin, filepath.Join(dir, "state"))
	if err := i.Connect(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.Close(context.WithoutCancel(ctx))) }()
	template, err := baseTemplate(ctx, i)
	if err != nil {
		return err
	}
	ours, err := measure(ctx, peer{"powernode mcp", filepath.Join(bin, "powernode"), []string{"--state-dir", i.Dir, "mcp"}, "system_create_node",
		func(n int) any { return rig.Object{"name": fmt.Sprintf("bench-%d", n), "template_id": template} }})
	if err != nil {
		return err
	}
	theirs, err := measure(ctx, peer{"bare mcp-go", self, []string{"-bare", dir}, "create", func(n int) any { return rig.Object{"name": fmt.Sprintf("bench-%d", n)} }})
	if err != nil {
		return err
	}
	report(ours, theirs)
	return applied(ctx, i, template)
}

func report(ours, theirs figures) {
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	fmt.Printf("%-44s %14s %14s %8s\n", "", "powernode", "bare mcp-go", "ratio")
	fmt.Printf("%-44s %14s %14s %8.2f\n", "a call that writes one row, median", ours.median, theirs.median, ratio(ours.median, theirs.median))
	fmt.Printf("%-44s %14s %14s %8.2f\n", "the same, 95th percentile", ours.p95, theirs.p95, ratio(ours.p95, theirs.p95))
	fmt.Printf("%-44s %14.0f %14.0f %8.2f\n", "calls a second, pipelined", ours.perSecond, theirs.perSecond, ours.perSecond/theirs.perSecond)
	fmt.Printf("%-44s %14s %14s %8.2f\n", "start to the first tools/list, median", ours.start, theirs.start, ratio(ours.start, theirs.start))
}

func measure(ctx context.Context, p peer) (figures, error) {
	var f figures
	var begun []time.Duration
	for range starts {
		t := time.Now()
		session, err := open(ctx, p)
		if err != nil {
			return f, fmt.Errorf("%s: %w", p.name, err)
		}
		if _, err := session.ListTools(ctx, mcp.ListToolsRequest{}); err != nil {
			return f, fmt.Errorf("%s: %w", p.name, err)
		}
		begun = append(begun, time.Since(t))
		if err := session.Close(); err != nil {
			return f, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	f.start = percentile(begun, 50)
	session, err := open(ctx, p)
	if err != nil {
		return f, fmt.Errorf("%s: %w", p.name, err)
	}
	defer session.Close() // the figures are what counts
	var took []time.Duration
	for n := range sequential {
		t := time.Now()
		if err := callOnce(ctx, session, p, n); err != nil {
			return f, fmt.Errorf("%s: %w", p.name, err)
		}
		took = append(took, time.Since(t))
	}
	f.median, f.p95 = percentile(took, 50), percentile(took, 95)
	f.perSecond, err = throughput(ctx, session, p)
	return f, err
}

// throughput sends calls without waiting for answers, as many at once as a busy client would.
func throughput(ctx context.Context, session *client.Client, p peer) (float64, error) {
	var group sync.WaitGroup
	numbers := make(chan int)
	failed := make(chan error, 32)
	t := time.Now()
	for range 32 {
		group.Go(func() {
			for n := range numbers {
				if err := callOnce(ctx, session, p, n); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for n := range pipelined {
		numbers <- sequential + n
	}
	close(numbers)
	group.Wait()
	close(failed)
	return pipelined / time.Since(t).Seconds(), <-failed
}

func open(ctx context.Context, p peer) (*client.Client, error) {
	session := client.NewClient(transport.NewCommandWithOptions(p.command, nil, p.args))
	if err := session.Start(ctx); err != nil {
		return nil, err
	}
	var request mcp.InitializeRequest
	request.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	request.Params.ClientInfo = mcp.Implementation{Name: "bench", Version: "1"}
	_, err := session.Initialize(ctx, request)
	return session, err
}

func callOnce(ctx context.Context, session *client.Client, p peer, n int) error {
	var request mcp.CallToolRequest
	request.Params.Name, request.Params.Arguments = p.verb, p.call(n)
	answer, err := session.CallTool(ctx, request)
	if err != nil {
		return err
	}
	if answer.IsError {
		text, _ := json.Marshal(answer.Content)
		return fmt.Errorf("%s refused: %s", p.verb, text)
	}
	return nil
}

func baseTemplate(ctx context.Context, i *rig.Installation) (string, error) {
	platforms, err := i.Call(ctx, "system_list_platforms", rig.Object{})
	if err != nil {
		return "", err
	}
	made, err := i.Call(ctx, "system_create_template", rig.Object{"name": "base",
		"node_platform_id": rig.Text(rig.Find(rig.List(platforms, "platforms"), "name", "linux-amd64"), "id")})
	return rig.Text(made, "template", "id"), err
}

func percentile(of []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Round(time.Microsecond)
}
