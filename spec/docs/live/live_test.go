package live_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"powernode/spec/docs"
	"powernode/spec/rig"
)

// Not in parallel: two clusters at a time are what a small host carries.
func TestTutorialComesOutAsPinned(t *testing.T) { run(t, "tutorial") }

// Not in parallel: see above.
func TestRunbookComesOutAsPinned(t *testing.T) { run(t, "runbook") }

func run(t *testing.T, name string) {
	d, err := docs.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Minute)
	t.Cleanup(cancel) // after the installation's end, which needs the session
	p := start(ctx, t)
	for _, step := range d.InOrder() {
		t.Logf("%s", step.Heading)
		for i, c := range step.Calls {
			began := time.Now()
			if err := p.do(ctx, c); err != nil {
				t.Fatalf("%s, call %d (%s): %v", step.Heading, i+1, title(c), err)
			}
			t.Logf("  %-8s %s (%d ms)", c.Place, title(c), time.Since(began).Milliseconds())
		}
	}
}

func title(c docs.Call) string {
	switch {
	case c.Verb != "":
		return c.Verb + ", " + string(c.Outcome)
	case c.Policy != nil:
		return "policy " + c.Policy.Category + ": " + c.Policy.Verdict
	case c.Exec != nil:
		return c.Exec.Machine + ": " + strings.Join(c.Exec.Command, " ")
	case c.Write != nil:
		return c.Write.Machine + ": write " + c.Write.Path
	case c.Install != nil:
		return c.Install.Machine + ": install " + c.Install.Path
	}
	return "powernode " + strings.Join(c.Powernode[:2], " ")
}

// player runs the calls of one document.
type player struct {
	*rig.Installation
	refs docs.References
	k3s  rig.K3s
}

func start(ctx context.Context, t *testing.T) *player {
	t.Helper()
	root := moduleRoot(t)
	bin := os.Getenv("BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
	}
	k3s, err := rig.ChooseK3s(ctx, os.Getenv("K3S"), filepath.Join(root, ".cache"), filepath.Join(root, "spec"), logWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "powernode-docs-") // short: a unix socket's path is
	if err != nil {
		t.Fatal(err)
	}
	p := &player{Installation: rig.New(bin, dir), refs: docs.References{}, k3s: k3s}
	t.Cleanup(func() { p.end(t) })
	for _, prepare := range []func(context.Context) error{p.Init, p.Connect, func(ctx context.Context) error { return p.Provide(ctx, k3s) }} {
		if err := prepare(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// end leaves nothing. Of a failed run the platform's log is shown.
func (p *player) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if t.Failed() {
		if log, err := os.ReadFile(filepath.Join(p.Dir, "serve.log")); err == nil {
			t.Logf("the platform's log, its end:\n%s", log[max(0, len(log)-6000):])
		}
	}
	if err := errors.Join(p.Close(ctx), os.RemoveAll(p.Dir)); err != nil {
		t.Error(err)
	}
}

func (p *player) do(ctx context.Context, c docs.Call) error {
	switch {
	case c.Exec != nil:
		return p.exec(ctx, *c.Exec)
	case c.Write != nil:
		content, err := p.refs.Text(c.Write.Content)
		if err != nil {
			return err
		}
		return p.Write(ctx, c.Write.Machine, c.Write.Path, []byte(content))
	case c.Install != nil:
		return p.Install(ctx, c.Install.Machine, p.k3s.Path, c.Install.Path)
	case c.Policy != nil:
		cmd := p.Command(ctx, "policies", "set", c.Policy.Category, c.Policy.Verdict)
		_, err := rig.Converse(ctx, cmd, []rig.Exchange{{Asked: "set it? [y/n]", Typed: "yes"}, {Asked: "passphrase:", Typed: p.Passphrase}})
		return err
	case len(c.Powernode) > 0:
		args, err := p.texts(c.Powernode)
		if err != nil {
			return err
		}
		_, err = p.Run(ctx, args...)
		return err
	}
	if err := p.call(ctx, c); err != nil {
		return err
	}
	for _, r := range c.Reads {
		if err := p.read(ctx, r); err != nil {
			return fmt.Errorf("the effect: %w", err)
		}
	}
	return nil
}

// call calls the verb and checks its outcome.
func (p *player) call(ctx context.Context, c docs.Call) error {
	arguments, err := p.refs.Fill(c.Given())
	if err != nil {
		return err
	}
	answer, err := p.Call(ctx, c.Verb, arguments)
	if c.Refusal != nil {
		return refusedAs(answer, err, *c.Refusal)
	}
	if err != nil {
		return err
	}
	if c.Outcome == docs.Parks {
		if answer, err = p.approved(ctx, c, arguments, answer); err != nil {
			return err
		}
	} else if answer["pending"] == true {
		return fmt.Errorf("it parked: %v", answer["message"])
	}
	if err := p.refs.Keep(answer, c.Save); err != nil {
		return err
	}
	return p.holds(answer, c.Answer)
}

// approved has the person approve a call that parked, and answers its result.
func (p *player) approved(ctx context.Context, c docs.Call, arguments any, parked docs.Object) (docs.Object, error) {
	if parked["pending"] != true || parked["action_category"] != c.Category || rig.Text(parked, "deferred_operation_id") == "" {
		return nil, fmt.Errorf("the answer is %v, want it parked under %s", parked, c.Category)
	}
	for _, r := range c.Waiting {
		if err := p.read(ctx, r); err != nil {
			return nil, fmt.Errorf("before the approval: %w", err)
		}
	}
	id, err := p.Decide(ctx, c.Verb, arguments, parked)
	if err != nil {
		return nil, err
	}
	answer, err := p.Call(ctx, "platform_get_operation", docs.Object{"deferred_operation_id": id})
	if err != nil {
		return nil, err
	}
	result, ok := rig.At(answer, "operation", "result").(docs.Object)
	if status := rig.Text(answer, "operation", "status"); status != "completed" || !ok {
		return nil, fmt.Errorf("the approved operation is %s: %v", status, rig.At(answer, "operation", "error"))
	}
	return result, nil
}

func refusedAs(answer docs.Object, err error, want docs.Refusal) error {
	var got *rig.Refusal
	switch {
	case err == nil:
		return fmt.Errorf("the answer is %v, want the refusal %s: %s", answer, want.Code, want.Text)
	case !errors.As(err, &got):
		return err
	case got.Code != want.Code || !strings.HasPrefix(got.Message, want.Text):
		return fmt.Errorf("it is refused with %w, want %s: %s", err, want.Code, want.Text)
	case want.Hint != "" && (got.Hint == nil || got.Hint.Verb != want.Hint):
		return fmt.Errorf("the refusal's hint is %+v, want the verb %s", got.Hint, want.Hint)
	}
	return nil
}

func (p *player) holds(answer docs.Object, check docs.Check) error {
	missing, err := p.refs.Missing(answer, check)
	if err == nil && missing != "" {
		err = errors.New(missing)
	}
	return err
}

// read asks until the answer shows the effect.
func (p *player) read(ctx context.Context, r docs.Read) error {
	arguments, err := p.refs.Fill(r.Arguments)
	if err != nil {
		return err
	}
	ask := func(ctx context.Context) (string, error) {
		answer, err := p.Call(ctx, r.Verb, arguments)
		if err != nil {
			return "", err
		}
		missing, err := p.refs.Missing(answer, r.Check)
		if err != nil || missing != "" {
			return missing, err
		}
		return "", p.refs.Keep(answer, r.Save)
	}
	if r.Within > 0 {
		return rig.Await(ctx, r.Verb, r.Within, ask)
	}
	missing, err := ask(ctx)
	if err == nil && missing != "" {
		err = fmt.Errorf("%s: %s", r.Verb, missing)
	}
	return err
}

func (p *player) exec(ctx context.Context, e docs.Exec) error {
	command, err := p.texts(e.Command)
	if err != nil {
		return err
	}
	if e.Fails {
		return fails(p.Exec(ctx, e.Machine, command...))
	}
	return rig.Await(ctx, strings.Join(command, " "), max(e.Within, time.Second), func(ctx context.Context) (string, error) {
		out, err := p.Exec(ctx, e.Machine, command...)
		if err != nil {
			return err.Error(), nil
		}
		if !strings.Contains(string(out), e.Prints) {
			return fmt.Sprintf("it prints %q, want %q in it", out, e.Prints), nil
		}
		return "", nil
	})
}

// fails wants a command that ran and failed: one that is not there proves nothing.
func fails(out []byte, err error) error {
	var ended *exec.ExitError
	switch {
	case err == nil:
		return fmt.Errorf("it succeeds, want it to fail: %s", out)
	case !errors.As(err, &ended) || ended.ExitCode() == 126 || ended.ExitCode() == 127:
		return fmt.Errorf("it did not run: %w", err)
	}
	return nil
}

func (p *player) texts(list []string) ([]string, error) {
	out := make([]string, len(list))
	for i, s := range list {
		text, err := p.refs.Text(s)
		if err != nil {
			return nil, err
		}
		out[i] = text
	}
	return out, nil
}

// moduleRoot is the folder with go.mod above this package.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above this package")
		}
		dir = filepath.Dir(dir)
	}
}

// logWriter shows what a build prints in the test's log.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", strings.TrimRight(string(b), "\n"))
	return len(b), nil
}
