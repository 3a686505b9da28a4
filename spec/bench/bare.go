package main

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	_ "github.com/mattn/go-sqlite3" // the driver
	"github.com/santhosh-tekuri/jsonschema/v5"
)

const bareSchema = `{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":63}},"required":["name"],"additionalProperties":false}`

// serveBare is the peer: mcp-go's own stdio server, one schema, one row.
func serveBare(dir string) error {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "bare.db")+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT`); err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("bare", strings.NewReader(bareSchema)); err != nil {
		return err
	}
	schema, err := compiler.Compile("bare")
	if err != nil {
		return err
	}
	s := server.NewMCPServer("bare", "1")
	s.AddTool(mcp.NewToolWithRawSchema("create", "Inserts one row.", []byte(bareSchema)), func(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		arguments := request.GetArguments()
		if err := schema.Validate(map[string]any(arguments)); err != nil {
			return mcp.NewToolResultError(err.Error()), nil
		}
		if _, err := db.ExecContext(ctx, `INSERT INTO rows (name) VALUES (?)`, arguments["name"]); err != nil {
			return nil, err
		}
		return mcp.NewToolResultText("{}"), nil
	})
	return server.ServeStdio(s)
}
