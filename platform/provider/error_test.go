package provider_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/platform/provider"
	"powernode/schema"
)

func TestErrorsOfAdaptersHaveTheContractsCodes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name      string
		err       error
		code      schema.Code
		retryable bool
		text      string
	}{
		{"credentials", &provider.Error{Class: provider.ClassAuthentication, Message: "401"}, schema.Unavailable, false,
			"hetzner-1: its credentials were refused: 401"},
		{"rate limit", &provider.Error{Class: provider.ClassRateLimit, Message: "slow down", RetryAt: at}, schema.Unavailable, true,
			"hetzner-1: too many requests: slow down"},
		{"gone", fmt.Errorf("look: %w", provider.ErrNotFound), schema.NotFound, false, "hetzner-1: provider knows no such machine"},
		{"quota", &provider.Error{Class: provider.ClassQuota, Message: "10 servers"}, schema.PreconditionFailed, false, "hetzner-1: 10 servers"},
		{"not there", provider.Unsupported("no spot machines"), schema.PreconditionFailed, false, "hetzner-1: no spot machines"},
		{"late", fmt.Errorf("call: %w", context.DeadlineExceeded), schema.Unavailable, true, "hetzner-1: it did not answer in time"},
		{"other", errors.New("bad\x1bgateway"), schema.Unavailable, true, "hetzner-1: bad�gateway"},
		{"ours", schema.Errorf(schema.PreconditionFailed, "making machines needs root"), schema.PreconditionFailed, false,
			"making machines needs root"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := provider.Refusal(tt.err, "hetzner-1")
			want := []any{tt.code, tt.retryable, tt.text}
			if diff := cmp.Diff(want, []any{got.Code, got.Retryable, got.Message}); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
			if tt.name == "rate limit" && got.Details["retry_at"] != "2026-01-02T03:04:05Z" {
				t.Errorf("retry_at = %v", got.Details["retry_at"])
			}
		})
	}
}

func TestVendorsTextsLoseTheirSecrets(t *testing.T) {
	t.Parallel()
	got := provider.Scrub("GET https://x/?token=abc123: 401 for abc123", []string{"", "abc123"})
	if want := "GET https://x/?token=[secret]: 401 for [secret]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
