package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// CheckSchema refuses what is no JSON schema that configs could be held against: of another form, or with references to
// elsewhere.
func CheckSchema(raw json.RawMessage) error {
	c := jsonschema.NewCompiler()
	c.Draft = jsonschema.Draft2020
	c.LoadURL = refuseReferences
	if err := c.AddResource("config_schema", bytes.NewReader(raw)); err != nil {
		return fmt.Errorf("it is not readable: %w", err)
	}
	_, err := c.Compile("config_schema")
	var wrong *jsonschema.SchemaError
	var broken *jsonschema.ValidationError
	if errors.As(err, &wrong) && errors.As(wrong.Err, &broken) {
		for len(broken.Causes) > 0 {
			broken = broken.Causes[0]
		}
		return fmt.Errorf("%s: %s", broken.InstanceLocation, broken.Message)
	}
	return err
}
