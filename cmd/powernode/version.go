package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is: the commit that it was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "powernode version "+version())
			return err
		},
	}
}

// version is what this program was built from, as far as the build knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknownVersion
	}
	return versionOf(info)
}

const unknownVersion = "unknown (the build has recorded no commit)"

// versionOf is the release, where one was built, and the commit with its time.
func versionOf(info *debug.BuildInfo) string {
	recorded := map[string]string{}
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	var words []string
	if v := info.Main.Version; v != "" && v != "(devel)" && !strings.HasPrefix(v, "v0.0.0-") {
		words = append(words, v)
	}
	if commit := recorded["vcs.revision"]; commit != "" {
		words = append(words, "commit "+commit[:min(len(commit), 12)])
		if at := recorded["vcs.time"]; at != "" {
			words = append(words, "of "+at)
		}
		if recorded["vcs.modified"] == "true" {
			words = append(words, "with changes")
		}
	}
	if len(words) == 0 {
		return unknownVersion
	}
	return strings.Join(words, " ")
}
