package tools_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"powernode/schema"
	"powernode/tools"
	"powernode/tools/toolstest"
)

func TestAFaultIsToldByItsEventAlone(t *testing.T) {
	t.Parallel()
	env := toolstest.New(t)
	gone, cancel := context.WithCancel(t.Context()) // the store begins nothing under it
	cancel()
	for _, callID := range []string{"", "call-1"} {
		_, err := env.Platform.Call(gone, env.Caller, tools.Request{Verb: "system_list_nodes", CallID: callID})
		var fault *schema.Error
		if !errors.As(err, &fault) {
			t.Fatalf("with call id %q: got %v, want a coded error", callID, err)
		}
		if fault.Code != schema.Internal || !strings.HasPrefix(fault.Message, "internal error (event ") {
			t.Errorf("with call id %q: got %s %q, want no word of what broke", callID, fault.Code, fault.Message)
		}
	}
}
