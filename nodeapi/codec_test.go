package nodeapi

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"powernode/sdwan"
)

// fuzzCodec: what is taken can be written, and what was written reads the same again.
func fuzzCodec[T any](f *testing.F, limit int, seeds ...any) {
	for _, s := range seeds {
		b, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...))
		f.Add(bytes.Replace(b, []byte(`{`), []byte(`{"undeclared":1,`), 1))
		f.Add(bytes.ToUpper(b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := decode[T](data, limit)
		if err != nil {
			return
		}
		once, err := encode(v, 4*limit)
		if err != nil {
			t.Fatalf("took %q and can't write it: %v", data, err)
		}
		again, err := decode[T](once, 4*limit)
		if err != nil {
			t.Fatalf("wrote %s and can't read it: %v", once, err)
		}
		twice, err := encode(again, 4*limit)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("wrote %s, then %s (%v)", once, twice, err)
		}
	})
}

func FuzzEnrollRequest(f *testing.F) {
	fuzzCodec[EnrollRequest](f, maxEnrollBytes, EnrollRequest{Token: "t", Machine: Machine{Hostname: "h"}})
}

func FuzzRefreshRequest(f *testing.F) {
	fuzzCodec[RefreshRequest](f, maxEnrollBytes, RefreshRequest{CSRPEM: "c", AgentVersion: "1"})
}

func FuzzEnrollment(f *testing.F) {
	fuzzCodec[Enrollment](f, maxEnrollBytes, Enrollment{InstanceID: "i", PlatformURLs: []string{"https://[::1]:1"}})
}

func FuzzHandshakeRequest(f *testing.F) {
	fuzzCodec[HandshakeRequest](f, maxHandshakeBytes, HandshakeRequest{Runtime: RuntimeK3sAgent, Phase: PhaseReady})
}

func FuzzDeviceBootstrapRequest(f *testing.F) {
	fuzzCodec[DeviceBootstrapRequest](f, maxDeviceBytes, DeviceBootstrapRequest{PublicKey: "k"})
}

func FuzzReport(f *testing.F) {
	yes := true
	fuzzCodec[sdwan.Report](f, maxReportBytes, sdwan.Report{Modules: map[string]string{"m": "d"}, K3s: &sdwan.K3sReport{NodeReady: &yes,
		Conditions: json.RawMessage(`[{"type":"Ready"}]`), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}}})
}

func FuzzDocument(f *testing.F) {
	fuzzCodec[sdwan.Document](f, maxDocumentBytes, sdwan.Document{Incarnation: "i", Revision: 1, Instance: sdwan.Instance{ID: "i"},
		Networks: []sdwan.Network{{DeviceName: "wg-sdwan-1", Peers: []sdwan.Peer{{Endpoints: []netip.AddrPort{netip.MustParseAddrPort("[::1]:1")}}}}},
		Modules:  []sdwan.Module{{Manifest: json.RawMessage(`{}`)}}, K3s: sdwan.K3s{Server: &sdwan.K3sServer{}, Agent: &sdwan.K3sAgent{}}})
}

func FuzzAnswers(f *testing.F) {
	fuzzCodec[struct {
		Enroll    *envelope[EnrollAnswer]          `json:"enroll"`
		Refresh   *envelope[RefreshAnswer]         `json:"refresh"`
		Report    *envelope[ReportAnswer]          `json:"report"`
		Handshake *envelope[HandshakeAnswer]       `json:"handshake"`
		Device    *envelope[DeviceBootstrapAnswer] `json:"device"`
	}](f, maxAnswerBytes, map[string]any{"enroll": envelope[EnrollAnswer]{Success: true, Data: &EnrollAnswer{}},
		"handshake": envelope[HandshakeAnswer]{Error: &Error{Code: "conflict", Candidates: []Candidate{{Name: "a"}}}}})
}

func TestDecodeRefusesNestingThatWouldExhaustTheStack(t *testing.T) {
	t.Parallel()
	deep := `{"modules":[{"config":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}]}`
	if _, err := decode[sdwan.Document]([]byte(deep), maxDocumentBytes); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("got %v", err)
	}
}

func TestDecodeLooksIntoFreeFormObjectsForDoubledKeysOnly(t *testing.T) {
	t.Parallel()
	if _, err := decode[sdwan.Document]([]byte(`{"modules":[{"config":{"anything":{"goes":1}}}]}`), maxDocumentBytes); err != nil {
		t.Errorf("free-form: %v", err)
	}
	_, err := decode[sdwan.Document]([]byte(`{"modules":[{"config":{"a/b":1,"a/b":2}}]}`), maxDocumentBytes)
	if err == nil || err.Error() != "/modules/0/config/a~1b: key given twice" {
		t.Errorf("got %v", err)
	}
}

func TestDocumentWithoutIdentityOrRevisionIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ doc, says string }{
		{`{}`, "/incarnation: is missing"},
		{`{"incarnation":"i"}`, "/instance/id: is missing"},
		{`{"incarnation":"i","instance":{"id":"x"}}`, "/revision: must be above 0"},
		{`null`, "/incarnation: is missing"},
		{`[]`, "/: is array, not sdwan.Document"},
	} {
		if _, err := DecodeDocument([]byte(tt.doc)); err == nil || err.Error() != tt.says {
			t.Errorf("%s: got %v, want %s", tt.doc, err, tt.says)
		}
	}
}
