package mcp

import "time"

// Often has a face tell of progress every so often.
func Often(f *Face, every time.Duration) { f.every = every }

// Prompted are the texts of all prompts as their files have them, by name.
func Prompted() (map[string]string, error) {
	files, err := promptFiles.ReadDir("prompts")
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, file := range files {
		raw, err := promptFiles.ReadFile("prompts/" + file.Name())
		if err != nil {
			return nil, err
		}
		head, text, err := readPrompt(raw)
		if err != nil {
			return nil, err
		}
		texts[head.Name] = text
	}
	return texts, nil
}

// ReadPrompt reads a prompt's file.
func ReadPrompt(raw []byte) error {
	_, _, err := readPrompt(raw)
	return err
}
