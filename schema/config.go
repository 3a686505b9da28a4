package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// ValidateConfig holds the config of a module against the module's config_schema. A schema in the subset that verbs
// use is explained key by key, at /config/KEY and with the nearest declared name; another one by its own pointers.
// A nil schema takes every config.
func ValidateConfig(configSchema json.RawMessage, config map[string]any) error {
	if configSchema == nil {
		return nil
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode a config: %w", err)
	}
	tree, err := parseTree(raw)
	if err != nil {
		return InvalidArgument("/config", nil, "%s", err.Error())
	}
	given, _ := tree.(*object)
	if given == nil {
		given = &object{values: map[string]any{}}
	}
	declared, err := parseNode(configSchema)
	if err != nil || declared.typ != "object" {
		return validateForeign(configSchema, given)
	}
	v := &Verb{input: declared}
	c := &checker{verb: v}
	c.object(declared, given, []string{"config"})
	if len(c.found) > 0 {
		refusal := v.refuse(c.found)
		refusal.Hint = nil // it would name a verb, and a config has none
		return refusal
	}
	return nil
}

// validateForeign judges by a schema that says more than our subset does.
func validateForeign(configSchema json.RawMessage, config *object) error {
	c := jsonschema.NewCompiler()
	c.Draft = jsonschema.Draft2020
	c.LoadURL = refuseReferences
	if err := c.AddResource("config_schema", bytes.NewReader(configSchema)); err != nil {
		return fmt.Errorf("read a config_schema: %w", err)
	}
	compiled, err := c.Compile("config_schema")
	if err != nil {
		return fmt.Errorf("compile a config_schema: %w", err)
	}
	err = compiled.Validate(plain(config))
	var broken *jsonschema.ValidationError
	if !errors.As(err, &broken) {
		return err
	}
	for len(broken.Causes) > 0 {
		broken = broken.Causes[0]
	}
	return InvalidArgument("/config"+broken.InstanceLocation, nil, "config%s does not fit the module's config_schema: %s",
		Printable(broken.InstanceLocation), Printable(broken.Message))
}
