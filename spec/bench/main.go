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
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"golang.org/x/sync/errgroup"

	"powernode/spec/rig"
)

const (
	starts     = 9
	rounds     = 10
	sequential = 30  // calls a round
	pipelined  = 100 // calls a round
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

// peer is one of the two servers: how it is started, its one-row call, and what was measured of it.
type peer struct {
	name    string
	command string
	args    []string
	verb    string
	call    func(n int) any

	session *client.Client
	called  int
	starts  []time.Duration
	took    []time.Duration // by calls one after another
	busy    time.Duration   // with pipelined calls
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
	ours := &peer{name: "powernode mcp", command: filepath.Join(bin, "powernode"), args: []string{"--state-dir", i.Dir, "mcp"}, verb: "system_create_node",
		call: func(n int) any { return rig.Object{"name": fmt.Sprintf("bench-%d", n), "template_id": template} }}
	theirs := &peer{name: "bare mcp-go", command: self, args: []string{"-bare", dir}, verb: "create",
		call: func(n int) any { return rig.Object{"name": fmt.Sprintf("bench-%d", n)} }}
	if err := measure(ctx, ours, theirs); err != nil {
		return err
	}
	report(ours, theirs)
	return applied(ctx, i, template)
}

func report(ours, theirs *peer) {
	line := func(what string, a, b time.Duration) {
		fmt.Printf("%-44s %14s %14s %8.2f\n", what, a, b, float64(a)/float64(b))
	}
	fmt.Printf("%-44s %14s %14s %8s\n", "", "powernode", "bare mcp-go", "ratio")
	line("a call that writes one row, median", percentile(ours.took, 50), percentile(theirs.took, 50))
	line("the same, 95th percentile", percentile(ours.took, 95), percentile(theirs.took, 95))
	a, b := rounds*pipelined/ours.busy.Seconds(), rounds*pipelined/theirs.busy.Seconds()
	fmt.Printf("%-44s %14.0f %14.0f %8.2f\n", "calls a second, pipelined", a, b, a/b)
	line("start to the first tools/list, median", percentile(ours.starts, 50), percentile(theirs.starts, 50))
}

// measure takes the peers in turns, so that what else the machine does meets both.
func measure(ctx context.Context, peers ...*peer) (err error) {
	turns := func(n int, do func(context.Context, *peer) error) error {
		for range n {
			for _, p := range peers {
				if err := do(ctx, p); err != nil {
					return fmt.Errorf("%s: %w", p.name, err)
				}
			}
		}
		return nil
	}
	if err := turns(starts, start); err != nil {
		return err
	}
	for _, p := range peers {
		if p.session, err = open(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		defer p.session.Close() // the figures are what counts
	}
	return errors.Join(turns(rounds, oneByOne), turns(rounds, atOnce))
}

// start takes the time to the first list of tools.
func start(ctx context.Context, p *peer) error {
	t := time.Now()
	session, err := open(ctx, p)
	if err != nil {
		return err
	}
	_, err = session.ListTools(ctx, mcp.ListToolsRequest{})
	p.starts = append(p.starts, time.Since(t))
	return errors.Join(err, session.Close())
}

func oneByOne(ctx context.Context, p *peer) error {
	for range sequential {
		t := time.Now()
		if err := p.callOnce(ctx, p.next()); err != nil {
			return err
		}
		p.took = append(p.took, time.Since(t))
	}
	return nil
}

// next numbers a call.
func (p *peer) next() int {
	p.called++
	return p.called
}

// atOnce sends calls without waiting for answers, as many at once as a busy client would.
func atOnce(ctx context.Context, p *peer) error {
	var group errgroup.Group
	group.SetLimit(32)
	t := time.Now()
	for range pipelined {
		n := p.next()
		group.Go(func() error { return p.callOnce(ctx, n) })
	}
	err := group.Wait()
	p.busy += time.Since(t)
	return err
}

func open(ctx context.Context, p *peer) (*client.Client, error) {
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

func (p *peer) callOnce(ctx context.Context, n int) error {
	var request mcp.CallToolRequest
	request.Params.Name, request.Params.Arguments = p.verb, p.call(n)
	answer, err := p.session.CallTool(ctx, request)
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
