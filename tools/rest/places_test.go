package rest_test

import (
	"net/http"
	"testing"

	"powernode/schema"
)

func TestACallerWithoutAPlaceIsToldToComeAgainAndOthersAreAnswered(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var leave []func()
	for {
		one, ok := h.places.Take(h.callers["agent"])
		if !ok {
			break
		}
		leave = append(leave, one)
	}
	const path = "/api/v1/verbs/platform_whoami"
	got := h.do(t, request{method: http.MethodPost, path: path, token: "agent"})
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || got.body.Error == nil ||
		got.body.Error.Code != schema.Unavailable || !got.body.Error.Retryable {
		t.Errorf("without a place: %d %s, want 503, retryable, and when to come again", got.status, got.raw)
	}
	if other := h.do(t, request{method: http.MethodPost, path: path, token: "viewer"}); other.status != http.StatusOK {
		t.Errorf("another caller meanwhile: %d %s", other.status, other.raw)
	}
	leave[0]()
	if again := h.do(t, request{method: http.MethodPost, path: path, token: "agent"}); again.status != http.StatusOK {
		t.Errorf("with a place: %d %s", again.status, again.raw)
	}
}
