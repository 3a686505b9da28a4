package mcp

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"

	sdk "github.com/mark3labs/mcp-go/mcp"
	"go.yaml.in/yaml/v3"

	"powernode/schema"
)

//go:embed prompts/*.md
var promptFiles embed.FS

// promptHead is the front matter of a prompt's file.
type promptHead struct {
	Name        string           `yaml:"name"`
	Title       string           `yaml:"title"`
	Description string           `yaml:"description"`
	Arguments   []promptArgument `yaml:"arguments"`
}

type promptArgument struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	Required    bool   `yaml:"required"`
	Default     string `yaml:"default"` // of one that is not required
}

// prompts are those in the files, by name.
func prompts() ([]Prompt, error) {
	files, err := promptFiles.ReadDir("prompts")
	if err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	var all []Prompt
	for _, file := range files {
		raw, err := promptFiles.ReadFile(path.Join("prompts", file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read prompt %s: %w", file.Name(), err)
		}
		head, text, err := readPrompt(raw)
		if err != nil {
			return nil, fmt.Errorf("read prompt %s: %w", file.Name(), err)
		}
		if head.Name+".md" != file.Name() {
			return nil, fmt.Errorf("prompt file %s declares prompt %s", file.Name(), head.Name)
		}
		all = append(all, head.prompt(text))
	}
	return all, nil
}

// place is where a prompt's text takes an argument.
var place = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)

// readPrompt reads a prompt's file: front matter between two lines of three dashes, and the text. Each place in the text
// is an argument's, and each argument has a place.
func readPrompt(raw []byte) (head promptHead, text string, err error) {
	rest, ok := strings.CutPrefix(string(raw), "---\n")
	front, text, cut := strings.Cut(rest, "\n---\n")
	if !ok || !cut {
		return head, "", fmt.Errorf("it begins with no front matter")
	}
	dec := yaml.NewDecoder(bytes.NewReader([]byte(front)))
	dec.KnownFields(true)
	if err := dec.Decode(&head); err != nil {
		return head, "", fmt.Errorf("front matter: %w", err)
	}
	text = strings.TrimSpace(text)
	if head.Name == "" || head.Title == "" || head.Description == "" || text == "" {
		return head, "", fmt.Errorf("name, title, description and a text are needed")
	}
	used := map[string]bool{}
	for _, m := range place.FindAllStringSubmatch(text, -1) {
		used[m[1]] = true
	}
	for _, a := range head.Arguments {
		if !used[a.Name] {
			return head, "", fmt.Errorf("argument %q has no place in the text", a.Name)
		}
		if a.Required == (a.Default != "") {
			return head, "", fmt.Errorf("argument %q is required, or has a default", a.Name)
		}
		delete(used, a.Name)
	}
	for name := range used {
		return head, "", fmt.Errorf("the text has a place for %q, which is no argument", name)
	}
	return head, text, nil
}

func (h promptHead) prompt(text string) Prompt {
	listed := sdk.Prompt{Name: h.Name, Title: h.Title, Description: h.Description}
	for _, a := range h.Arguments {
		listed.Arguments = append(listed.Arguments, sdk.PromptArgument{Name: a.Name, Description: a.Description, Required: a.Required})
	}
	return Prompt{Listed: listed, Get: func(_ context.Context, c *Call) (*sdk.GetPromptResult, error) {
		values := map[string]string{}
		for _, a := range h.Arguments {
			values[a.Name] = schema.Message(c.Values[a.Name]) // on one line, and bound
			if strings.TrimSpace(values[a.Name]) == "" {
				values[a.Name] = a.Default
			}
		}
		// All at once: what a value says is no place.
		filled := place.ReplaceAllStringFunc(text, func(m string) string { return values[m[2:len(m)-2]] })
		return sdk.NewGetPromptResult(h.Description, []sdk.PromptMessage{sdk.NewPromptMessage(sdk.RoleUser, sdk.NewTextContent(filled))}), nil
	}}
}
