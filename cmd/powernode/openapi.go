package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"powernode/schema"
	"powernode/tools/rest"
)

func openapiCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "openapi",
		Short: "Print the OpenAPI 3.1 document of the REST API",
		Long: "Print the OpenAPI 3.1 document of the REST API: what GET /api/v1/openapi.json answers. It is made from the verbs' own\n" +
			"schemas, and needs no control plane.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verbs, err := schema.Verbs()
			if err != nil {
				return err
			}
			raw, err := rest.OpenAPI(verbs, version())
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := json.Indent(&out, raw, "", " "); err != nil {
				return fmt.Errorf("indent the document: %w", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), out.String())
			return err
		},
	}
}
