package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// Installation is one state directory with everything that runs on it.
type Installation struct {
	Bin        string // folder with powernode and powernode-agent
	Dir        string // state directory
	Passphrase string // of the person's human key

	// User is whose processes all of it is; nil: this one's. Home is that user's home, where all of it runs then.
	User *syscall.Credential
	Home string

	// Listing are the flags of powernode mcp that choose what is listed; nil: every verb.
	Listing []string

	session *client.Client
}

// Object is a JSON object as an answer has it.
type Object = map[string]any

// Refusal is a verb's error.
type Refusal struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Details   Object `json:"details"`
	Hint      *Hint  `json:"hint"`
	Retryable bool   `json:"retryable"`
}

// Hint names the verb to call next.
type Hint struct {
	Verb string `json:"verb"`
	Text string `json:"text"`
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// New makes an installation in a directory that exists.
func New(bin, dir string) *Installation {
	return &Installation{Bin: bin, Dir: dir, Passphrase: "correct horse battery staple"}
}

// Command is powernode's command line on this installation.
func (i *Installation) Command(ctx context.Context, args ...string) *exec.Cmd {
	return i.Program(ctx, "powernode", append([]string{"--state-dir", i.Dir}, args...)...)
}

// Program is a program of the installation's folder, run by the installation's user.
func (i *Installation) Program(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(i.Bin, name), args...)
	if i.User != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: i.User}
		cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + i.Home}, i.Home
	}
	return cmd
}

// Run runs powernode and answers what it printed. An error carries what it said.
func (i *Installation) Run(ctx context.Context, args ...string) ([]byte, error) {
	return output(i.Command(ctx, args...))
}

// Exec runs a command inside a machine or workstation.
func (i *Installation) Exec(ctx context.Context, machine string, argv ...string) ([]byte, error) {
	return i.Run(ctx, append([]string{"local", "exec", machine, "--"}, argv...)...)
}

// Write writes a file inside a machine, 0600.
func (i *Installation) Write(ctx context.Context, machine, path string, content []byte) error {
	cmd := i.Command(ctx, "local", "exec", machine, "--", "sh", "-c", `umask 077; mkdir -p "$(dirname "$1")"; cat > "$1"`, "sh", path)
	cmd.Stdin = bytes.NewReader(content)
	_, err := output(cmd)
	return err
}

func output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args[1:], " "), err, stdout.String(), stderr.String())
	}
	return stdout.Bytes(), nil
}

// Connect starts an MCP session over stdio.
func (i *Installation) Connect(ctx context.Context) error {
	start := func(ctx context.Context, _ string, _, args []string) (*exec.Cmd, error) {
		return i.Command(ctx, args...), nil
	}
	listing := i.Listing
	if listing == nil {
		listing = []string{"--toolsets", "all"}
	}
	t := transport.NewCommandWithOptions("powernode", nil, append([]string{"mcp"}, listing...), transport.WithCommandFunc(start))
	i.session = client.NewClient(t)
	if err := i.session.Start(ctx); err != nil {
		return fmt.Errorf("start powernode mcp: %w", err)
	}
	var request mcp.InitializeRequest
	request.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	request.Params.ClientInfo = mcp.Implementation{Name: "powernode-spec", Version: "1"}
	if _, err := i.session.Initialize(ctx, request); err != nil {
		return fmt.Errorf("initialize the MCP session: %w", err)
	}
	return nil
}

// Tools lists the names of all tools.
func (i *Installation) Tools(ctx context.Context) ([]string, error) {
	list, err := i.session.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	names := make([]string, len(list.Tools))
	for k, tool := range list.Tools {
		names[k] = tool.Name
	}
	return names, nil
}

// Prompt gets a prompt's text over MCP.
func (i *Installation) Prompt(ctx context.Context, name string, arguments map[string]string) (string, error) {
	var request mcp.GetPromptRequest
	request.Params.Name, request.Params.Arguments = name, arguments
	answer, err := i.session.GetPrompt(ctx, request)
	if err != nil {
		return "", fmt.Errorf("get prompt %s: %w", name, err)
	}
	var all []string
	for _, m := range answer.Messages {
		text, ok := mcp.AsTextContent(m.Content)
		if !ok {
			return "", fmt.Errorf("get prompt %s: a message is no text", name)
		}
		all = append(all, text.Text)
	}
	return strings.Join(all, "\n"), nil
}

// Prompts lists all prompts: names, each with the arguments that it requires.
func (i *Installation) Prompts(ctx context.Context) (map[string][]string, error) {
	list, err := i.session.ListPrompts(ctx, mcp.ListPromptsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	required := map[string][]string{}
	for _, prompt := range list.Prompts {
		required[prompt.Name] = nil
		for _, a := range prompt.Arguments {
			if a.Required {
				required[prompt.Name] = append(required[prompt.Name], a.Name)
			}
		}
	}
	return required, nil
}

// Call calls a verb over MCP. A verb's refusal is a *Refusal.
func (i *Installation) Call(ctx context.Context, verb string, arguments any) (Object, error) {
	var request mcp.CallToolRequest
	request.Params.Name, request.Params.Arguments = verb, arguments
	answer, err := i.session.CallTool(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", verb, err)
	}
	if len(answer.Content) != 1 {
		return nil, fmt.Errorf("call %s: %d contents, want one", verb, len(answer.Content))
	}
	text, ok := mcp.AsTextContent(answer.Content[0])
	if !ok {
		return nil, fmt.Errorf("call %s: the content is no text", verb)
	}
	if answer.IsError {
		refusal := &Refusal{}
		if err := json.Unmarshal([]byte(text.Text), refusal); err != nil {
			return nil, fmt.Errorf("call %s: read the error %q: %w", verb, text.Text, err)
		}
		return nil, refusal
	}
	var out Object
	if err := json.Unmarshal([]byte(text.Text), &out); err != nil {
		return nil, fmt.Errorf("call %s: read the result: %w", verb, err)
	}
	return out, nil
}

// Approved calls a verb, has the person approve it where it parks, and answers the result.
func (i *Installation) Approved(ctx context.Context, verb string, arguments any) (Object, error) {
	out, err := i.Call(ctx, verb, arguments)
	if err != nil || out["pending"] != true {
		return out, err
	}
	id, err := i.Decide(ctx, verb, arguments, out)
	if err != nil {
		return nil, err
	}
	operation, err := i.Call(ctx, "platform_get_operation", Object{"deferred_operation_id": id})
	if err != nil {
		return nil, err
	}
	if status := Text(operation, "operation", "status"); status != "completed" {
		return nil, fmt.Errorf("operation %s of %s is %s: %v", id, verb, status, At(operation, "operation", "error"))
	}
	result, _ := At(operation, "operation", "result").(Object)
	return result, nil
}

// decisions bounds how often a call is asked for anew whose plan went stale.
const decisions = 5

// Decide has the person approve a call that was parked, and answers the operation's id. What a machine reports before the
// person has decided may make the plan a stale one: the call is made again then, as its refusal says.
func (i *Installation) Decide(ctx context.Context, verb string, arguments any, parked Object) (operation string, err error) {
	for n := 1; ; n++ {
		operation = Text(parked, "deferred_operation_id")
		err = i.Approve(ctx, operation)
		if err == nil || n == decisions || !strings.Contains(err.Error(), "plan is stale") {
			return operation, err
		}
		if parked, err = i.Call(ctx, verb, arguments); err != nil {
			return "", err
		}
		if parked["pending"] != true {
			return "", fmt.Errorf("%s did not park when it was called again: %v", verb, parked)
		}
	}
}

// Disconnect ends the session.
func (i *Installation) Disconnect() error {
	if i.session == nil {
		return nil
	}
	err := i.session.Close()
	i.session = nil
	return err
}

// Close ends the session, the platform and every machine.
func (i *Installation) Close(ctx context.Context) error {
	errs := []error{i.Disconnect()}
	if _, err := i.Run(ctx, "stop"); err != nil {
		errs = append(errs, err)
	}
	if os.Geteuid() == 0 && i.User == nil {
		_, err := i.Run(ctx, "local", "down")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// At walks into an answer by keys and list positions; what is not there is nil.
func At(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			o, _ := v.(Object)
			v = o[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}

// Text is At for a text; "" where there is none.
func Text(v any, path ...any) string {
	s, _ := At(v, path...).(string)
	return s
}

// List is At for a list of objects.
func List(v any, path ...any) []Object {
	list, _ := At(v, path...).([]any)
	out := make([]Object, 0, len(list))
	for _, each := range list {
		if o, ok := each.(Object); ok {
			out = append(out, o)
		}
	}
	return out
}

// Find is the first object of a list whose key has a value.
func Find(list []Object, key string, value any) Object {
	for _, o := range list {
		if o[key] == value {
			return o
		}
	}
	return nil
}

// Await asks until it is so, or the deadline is over. ask says what is missing, or "".
func Await(ctx context.Context, what string, limit time.Duration, ask func(context.Context) (missing string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	missing := "nothing was asked yet"
	for {
		now, err := ask(ctx)
		if err == nil && now == "" {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("await %s: %w", what, err)
		}
		if err == nil {
			missing = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("await %s: not within %s: %s", what, limit, missing)
		}
	}
}

// Isolation awaits the platform's verdict on the isolation of its networks (none named: of all) and answers it with its evidence.
// "not_measured" is an honest answer until the agents have applied what changed, and is asked about again; any other that is
// not wanted is an error.
func (i *Installation) Isolation(ctx context.Context, networks Object, want string) (Object, error) {
	var out Object
	err := Await(ctx, "the networks to be "+want, time.Minute, func(ctx context.Context) (missing string, err error) {
		if out, err = i.Call(ctx, "system_sdwan_verify_isolation", networks); err != nil {
			return "", err
		}
		switch verdict := Text(out, "verdict"); verdict {
		case want:
			return "", nil
		case "not_measured":
			return fmt.Sprintf("not measured: agents %v, probes %v", out["stale_agents"], out["probes"]), nil
		default:
			return "", fmt.Errorf("verdict %s: leaks %v, agents %v, probes %v", verdict, out["leaks"], out["stale_agents"], out["probes"])
		}
	})
	return out, err
}

// Install copies a program of the host into a machine.
func (i *Installation) Install(ctx context.Context, machine, program, path string) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := i.Command(ctx, "local", "exec", machine, "--", "sh", "-c", `cat > "$1" && chmod 755 "$1"`, "sh", path)
	cmd.Stdin = f
	_, err = output(cmd)
	return err
}
