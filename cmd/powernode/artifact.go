package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"powernode/platform/governance"
	"powernode/store"
)

func artifactCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "artifact",
		Short: "Keep files that module versions name, such as the K3s binary",
		Long: "Keep files that module versions name, such as the K3s binary. A version names one by its base name and SHA-256\n" +
			"(system_create_module_version, file); machines get it from the control plane and check it.",
	}
	cmd.AddCommand(artifactAddCommand(), artifactListCommand(), artifactAllowHostCommand())
	return cmd
}

func artifactAddCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "add FILE",
		Short:   "Put a file into the control plane's artefact store, under its base name",
		Example: "  powernode artifact add ./k3s",
		Args:    cobra.ExactArgs(1),
		RunE: withServe(func(cmd *cobra.Command, args []string, c *serveClient) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("find %s: %w", args[0], err)
			}
			switch info, err := os.Stat(path); {
			case err != nil:
				return fmt.Errorf("read the file: %w", err)
			case !info.Mode().IsRegular():
				return fmt.Errorf("%s is no plain file", path)
			}
			a, err := c.ImportArtifact(cmd.Context(), path)
			if err != nil {
				return err
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), a)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s  %d bytes  sha256 %s\n", governance.Plain(a.Name, 128), a.SizeBytes, a.SHA256)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func artifactListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the files of the artefact store",
		Args:  cobra.NoArgs,
		RunE: withServe(func(cmd *cobra.Command, _ []string, c *serveClient) error {
			var kept artifactsAnswer
			if err := c.post(cmd.Context(), artifactListPath, struct{}{}, &kept); err != nil {
				return err
			}
			if asJSON {
				return printValue(cmd.OutOrStdout(), kept)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(table, "NAME\tBYTES\tSHA256")
			for _, a := range kept.Artifacts {
				fmt.Fprintf(table, "%s\t%d\t%s\n", governance.Plain(a.Name, 128), a.SizeBytes, a.SHA256)
			}
			return table.Flush()
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func artifactAllowHostCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "allow-host HOST",
		Short: "Let artefact URLs name a host whose addresses are not public",
		Long: "Let artefact URLs name a host whose addresses are not public, such as a mirror in your own network. Without it an\n" +
			"artefact is fetched from public addresses alone.",
		Args: cobra.ExactArgs(1),
		RunE: withServe(func(cmd *cobra.Command, args []string, c *serveClient) error {
			if err := c.AllowArtifactHost(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "allowed")
			return nil
		}),
	}
}

// withServe runs a command's work with the control plane's own socket.
func withServe(work func(cmd *cobra.Command, args []string, c *serveClient) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		dir, err := standingStateDir(cmd)
		if err != nil {
			return err
		}
		c, err := dialControlPlane(cmd.Context(), dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		return work(cmd, args, c)
	}
}

// artifactListPath is the socket's path of the artefact store's list.
const artifactListPath = "/v1/artifacts/list"

type artifactsAnswer struct {
	Artifacts []importAnswer `json:"artifacts"`
}

// listArtifacts answers what the artefact store keeps.
func (c *control) listArtifacts(w http.ResponseWriter, r *http.Request) {
	answer := artifactsAnswer{Artifacts: []importAnswer{}}
	err := c.platform.DB.View(r.Context(), func(v *store.View) error {
		kept, err := store.Artifacts(r.Context(), v)
		for _, a := range kept {
			answer.Artifacts = append(answer.Artifacts, importAnswer{Name: a.Name, SHA256: a.SHA256, SizeBytes: a.SizeBytes})
		}
		return err
	})
	c.answer(w, answer, err)
}
