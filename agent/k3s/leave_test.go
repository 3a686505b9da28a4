package k3s

import (
	"net/http"
	"testing"

	"powernode/nodeapi"
	"powernode/sdwan"
)

func TestLeavingNeedsNoWordFromAPlatformThatHasForgottenTheMachine(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.server())
	doc := l.server()
	doc.K3s.Server = &sdwan.K3sServer{State: "absent"}
	l.answer = func(nodeapi.HandshakeRequest) (nodeapi.HandshakeAnswer, error) {
		return nodeapi.HandshakeAnswer{}, &nodeapi.Error{HTTPStatus: http.StatusUnauthorized, Message: "no valid credential"}
	}
	if err := l.s.Reconcile(t.Context(), doc); err == nil {
		t.Error("a machine that stays is done before the platform has heard of it")
	}
	doc.Instance.Leave = true
	l.must(doc)
	l.host.assertCleaned(t, true)
}
