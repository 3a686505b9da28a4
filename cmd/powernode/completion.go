package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"powernode/platform/governance"
	"powernode/schema"
)

// completeWait bounds what completion asks of a control plane: a shell waits for it.
const completeWait = time.Second

// completeCall completes powernode call: the verb, its parameters, their values, and the ids of what is there, told with
// their names, where a control plane runs. It starts none.
func completeCall(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	open := openFlag(args)
	if open != "" {
		args = args[:len(args)-1]
	}
	in, flags, err := splitCall(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	v := verbNamed(in.verb)
	name, _, assigned := strings.Cut(strings.TrimPrefix(begun, "--"), "=")
	var out []cobra.Completion
	directive := cobra.ShellCompDirectiveNoFileComp
	switch {
	case strings.HasPrefix(begun, "--") && assigned:
		values, d := valuesOf(cmd, in, v, name)
		directive = d
		for _, value := range values {
			out = append(out, "--"+name+"="+value)
		}
	case open != "" && !strings.HasPrefix(begun, "-"):
		out, directive = valuesOf(cmd, in, v, open)
	case in.verb == "" && !strings.HasPrefix(begun, "-"):
		out = verbNames()
	default:
		out = parameterFlags(v, flags)
	}
	return slices.DeleteFunc(out, func(c cobra.Completion) bool { return !strings.HasPrefix(c, begun) }), directive
}

// openFlag is the flag that waits for its value; "" where none does.
func openFlag(args []string) string {
	if len(args) == 0 {
		return ""
	}
	name, ok := strings.CutPrefix(args[len(args)-1], "--")
	if !ok || strings.Contains(name, "=") {
		return ""
	}
	return name
}

func verbNames() []cobra.Completion {
	verbs, err := schema.Verbs()
	if err != nil {
		return nil
	}
	names := make([]cobra.Completion, len(verbs))
	for i, v := range verbs {
		names[i] = cobra.CompletionWithDesc(v.Name, v.Title)
	}
	return names
}

// categories are the action categories of all verbs, sorted.
func categories(*cobra.Command) []cobra.Completion {
	verbs, err := schema.Verbs()
	if err != nil {
		return nil
	}
	var out []cobra.Completion
	for _, v := range verbs {
		if v.Gated() {
			out = append(append(out, v.Category), v.Escalates...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// asked is what a flag or an argument of a command can be.
type asked struct {
	values []cobra.Completion
	list   bool // several of them, with commas between
	from   func(cmd *cobra.Command) []cobra.Completion
	ids    string // those of what there is, as listedBy names it
	path   pathKind
}

// pathKind is what a path leads to, where one is asked for.
type pathKind int

const (
	noPath pathKind = iota
	aFile
	aFolder
)

// flagValues are the flags of the commands, by name, that have values to offer. The others offer none: a file's name is
// offered where one is asked for alone.
func flagValues() map[string]asked {
	roles := []cobra.Completion{governance.RoleViewer, governance.RoleOperator, governance.RoleAdmin}
	return map[string]asked{
		stateDirFlag:  {path: aFolder},
		tokenFileFlag: {path: aFile},
		"tls-cert":    {path: aFile},
		"tls-key":     {path: aFile},
		"out":         {path: aFile},
		"role":        {values: roles},
		"output":      {values: []cobra.Completion{"json", "table"}},
		"status":      {values: append([]cobra.Completion{"all"}, operationStatuses()...)},
		"toolset":     {values: schema.Toolsets()},
		"toolsets":    {values: append(schema.Toolsets(), "all"), list: true},
		"grant":       {values: []cobra.Completion{"admin.audit.read"}, list: true},
		"http":        {values: []cobra.Completion{httpOff}},
		"agents":      {values: []cobra.Completion{httpOff}},
		"user-id":     {ids: "user_id"},
		"cluster-id":  {ids: "cluster_id"},
		"network-id":  {ids: "network_id"},
	}
}

// argumentValues are what stands behind a command's name, one entry an argument, by the command's path.
func argumentValues() map[string][]asked {
	verdicts := []cobra.Completion{string(governance.AutoApprove), string(governance.NotifyAndProceed), string(governance.RequireApproval),
		string(governance.Block)}
	operation, category := asked{ids: "deferred_operation_id"}, asked{from: categories}
	return map[string][]asked{
		"powernode approvals show":    {operation},
		"powernode approvals approve": {operation},
		"powernode approvals reject":  {operation},
		"powernode policies set":      {category, {values: verdicts}},
		"powernode policies unset":    {category},
		"powernode artifact add":      {{path: aFile}},
		"powernode local exec":        {{from: machines}},
		"powernode local workstation": {{from: machines}},
	}
}

// machines are those on this host, by the names that powernode local takes.
func machines(cmd *cobra.Command) []cobra.Completion {
	p, err := localProvider(cmd)
	if err != nil {
		return nil
	}
	entries, err := p.Entries(cmd.Context())
	if err != nil {
		return nil
	}
	out := make([]cobra.Completion, len(entries))
	for i, e := range entries {
		out[i] = cobra.CompletionWithDesc(e.Name, e.Kind+" "+string(e.Status))
	}
	return out
}

// operationStatuses are those that platform_list_operations knows.
func operationStatuses() []cobra.Completion {
	v := verbNamed("platform_list_operations")
	if v == nil {
		return nil
	}
	return slices.Clone(v.InputShape().Properties["status"].Enum)
}

// completed has every flag and argument of the commands offer what it can be.
func completed(cmd *cobra.Command, flags map[string]asked, arguments map[string][]asked) {
	for _, sub := range cmd.Commands() {
		completed(sub, flags, arguments)
	}
	if cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
		return // cobra's own
	}
	register := func(f *pflag.Flag) {
		if _, there := cmd.GetFlagCompletionFunc(f.Name); there {
			return
		}
		a := flags[f.Name]
		if f.Value.Type() == "bool" {
			a = asked{values: []cobra.Completion{"true", "false"}}
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, a.complete); err != nil {
			panic("a flag of ours can't be completed: " + err.Error()) // it is the command's
		}
	}
	cmd.LocalFlags().VisitAll(register)
	if cmd.ValidArgsFunction == nil && cmd.Runnable() && !cmd.HasSubCommands() {
		behind := arguments[cmd.CommandPath()]
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) >= len(behind) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return behind[len(args)].complete(cmd, args, begun)
		}
	}
}

func (a asked) complete(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	values := a.values
	switch {
	case a.path == aFile:
		return nil, cobra.ShellCompDirectiveDefault
	case a.path == aFolder:
		return nil, cobra.ShellCompDirectiveFilterDirs
	case a.from != nil:
		values = a.from(cmd)
	case a.ids != "":
		values = ids(cmd, callInput{}, a.ids)
	}
	before := ""
	if comma := strings.LastIndex(begun, ","); a.list && comma >= 0 {
		before = begun[:comma+1]
	}
	var out []cobra.Completion
	for _, value := range values {
		if strings.HasPrefix(before+value, begun) {
			out = append(out, before+value)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// parameterFlags are the verb's parameters that are not given yet, keys of typed objects among them, then the command's own.
func parameterFlags(v *schema.Verb, given []given) []cobra.Completion {
	var out []cobra.Completion
	if v != nil {
		for _, name := range flagNames("", v.InputShape()) {
			_, declared := declaredAt(v.InputShape(), name)
			if declared.Type == "array" || !slices.ContainsFunc(given, named(name)) {
				out = append(out, "--"+name)
			}
		}
	}
	for _, own := range ownFlags {
		if own != stateDirFlag { // cobra offers what every command has
			out = append(out, "--"+own)
		}
	}
	return out
}

func named(name string) func(given) bool {
	return func(g given) bool { return strings.ReplaceAll(g.name, "-", "_") == name }
}

func flagNames(prefix string, s *schema.Shape) []string {
	var out []string
	for _, name := range s.Names {
		out = append(out, prefix+name)
		out = append(out, flagNames(prefix+name+".", s.Properties[name])...)
	}
	return out
}

// valuesOf are what a parameter can be.
func valuesOf(cmd *cobra.Command, in callInput, v *schema.Verb, name string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch name {
	case "output":
		return []cobra.Completion{"json", "table"}, cobra.ShellCompDirectiveNoFileComp
	case stateDirFlag:
		return nil, cobra.ShellCompDirectiveFilterDirs
	case "json", tokenFileFlag:
		return nil, cobra.ShellCompDirectiveDefault
	}
	if v == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	path, declared := declaredAt(v.InputShape(), name)
	if declared != nil && declared.Type == "array" {
		declared = declared.Items
	}
	switch {
	case declared == nil:
		return nil, cobra.ShellCompDirectiveNoFileComp
	case path[len(path)-1] == "verb", path[len(path)-1] == "tool_name":
		return verbNames(), cobra.ShellCompDirectiveNoFileComp
	case path[len(path)-1] == "action_category":
		return categories(cmd), cobra.ShellCompDirectiveNoFileComp
	case declared.Type == "boolean":
		return []cobra.Completion{"true", "false"}, cobra.ShellCompDirectiveNoFileComp
	case len(declared.Enum) > 0:
		return slices.Clone(declared.Enum), cobra.ShellCompDirectiveNoFileComp
	case declared.Type == "string":
		return ids(cmd, in, idOf(v, path[len(path)-1])), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// listedBy says which verb lists what a parameter names, and under which key.
var listedBy = map[string][2]string{
	"node_id":                   {"system_list_nodes", "nodes"},
	"instance_id":               {"system_list_instances", "instances"},
	"node_instance_id":          {"system_list_instances", "instances"},
	"template_id":               {"system_list_templates", "templates"},
	"node_template_id":          {"system_list_templates", "templates"},
	"module_id":                 {"system_list_modules", "modules"},
	"node_platform_id":          {"system_list_platforms", "platforms"},
	"provider_id":               {"system_list_providers", "providers"},
	"provider_region_id":        {"system_list_regions", "regions"},
	"provider_instance_type_id": {"system_list_instance_types", "instance_types"},
	"network_id":                {"system_sdwan_list_networks", "networks"},
	"network_ids":               {"system_sdwan_list_networks", "networks"},
	"cluster_id":                {"kubernetes_list_clusters", "clusters"},
	"target_cluster_id":         {"kubernetes_list_clusters", "clusters"},
	"deferred_operation_id":     {"platform_list_operations", "operations"},
	"architecture_id":           {"system_list_architectures", "architectures"},
	"platform_id":               {"system_list_platforms", "platforms"},
	"module_ids":                {"system_list_modules", "modules"},
	"user_id":                   {"platform_whoami", "users"},
	"connection_id":             {"system_list_provider_connections", "connections"},
	"task_id":                   {"system_list_tasks", "tasks"},
}

// idOf is what a verb's parameter names; a plain id is of what the verb's name ends in.
func idOf(v *schema.Verb, parameter string) string {
	if parameter != "id" {
		return parameter
	}
	return v.Name[strings.LastIndex(v.Name, "_")+1:] + "_id"
}

// ids asks the running control plane what a parameter could name.
func ids(cmd *cobra.Command, in callInput, parameter string) []cobra.Completion {
	list, ok := listedBy[parameter]
	if !ok || verbNamed(list[0]) == nil {
		return nil
	}
	if in.stateDir != "" {
		if err := cmd.Flags().Set(stateDirFlag, in.stateDir); err != nil {
			return nil
		}
	}
	path, err := cmd.Flags().GetString(stateDirFlag)
	if err != nil || path == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWait)
	defer cancel()
	c := runningControlPlane(stateDir(path))
	result, _, err := c.Call(ctx, list[0], json.RawMessage(`{}`))
	if err != nil || c.Close() != nil {
		return nil // nothing runs, or it says no: then nothing is offered
	}
	var answer map[string]json.RawMessage
	var rows []struct {
		ID     string `json:"id"`
		Name   string `json:"name"`
		Verb   string `json:"verb"`
		Status string `json:"status"`
	}
	if json.Unmarshal(result, &answer) != nil || json.Unmarshal(answer[list[1]], &rows) != nil {
		return nil
	}
	out := make([]cobra.Completion, 0, len(rows))
	for _, row := range rows {
		said := strings.TrimSpace(row.Name + row.Verb + " " + row.Status)
		out = append(out, cobra.CompletionWithDesc(row.ID, shown(said, maxCell)))
	}
	return out
}

// runningControlPlane asks the control plane that runs, and starts none.
func runningControlPlane(dir stateDir) *serveClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, _, err := dialControl(ctx, dir)
		return conn, err
	}
	return &serveClient{dir: dir, http: &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: completeWait}}
}
