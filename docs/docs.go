// Package docs embeds the documents for operators, so that an assistant can read them where the control plane runs.
//
// It holds no behaviour: tools/mcp lists the runbook and the tutorial as resources, and spec executes them.
package docs

import "embed"

// Files are the documents, by their names in this folder.
//
//go:embed *.md reference/*.md
var Files embed.FS
