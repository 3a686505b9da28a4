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
	case declared.Type == "boolean":
		return []cobra.Completion{"true", "false"}, cobra.ShellCompDirectiveNoFileComp
	case len(declared.Enum) > 0:
		return slices.Clone(declared.Enum), cobra.ShellCompDirectiveNoFileComp
	case declared.Type == "string":
		return ids(cmd, in, path[len(path)-1]), cobra.ShellCompDirectiveNoFileComp
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
