package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Frames that are read are written again as they were; what is none ends the stream with an error, and never with a
// part of a message.
func FuzzReadFrame(f *testing.F) {
	for _, seed := range []string{"", "a 1\nx", "a 0\n", "- 3\nabc", "a 2\nx", "a -1\n", "a\n", "a 99999999999\n", "a 67108865\n", "a b 1\nx", "a 1\nxb 2\nyz"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		if bytes.Contains(stream, []byte("0000000")) {
			return // a length that is taken, and made room for
		}
		in := bufio.NewReader(bytes.NewReader(stream))
		var again bytes.Buffer
		for {
			got, err := readFrame(in)
			if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			if err != nil {
				return
			}
			if err := writeFrame(&again, got); err != nil {
				t.Fatal(err)
			}
			back, err := readFrame(bufio.NewReader(bytes.NewReader(again.Bytes())))
			if err != nil || back.id != got.id || !bytes.Equal(back.message, got.message) {
				t.Fatalf("%q came back as %q, %v", got, back, err)
			}
			again.Reset()
		}
	})
}

// Whatever a control plane answers: it is shown or refused, and no control character reaches the terminal.
func FuzzTable(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":[{"b":1},2]}`, `{"a":{"b":{}}}`, `[1]`, `"x"`, `{"a":"\u001b[2J"}`, `{"\u009b":[{"\u202e":null}]}`, `{"a":[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		var out bytes.Buffer
		if err := printTable(&out, answer, 0); err != nil {
			return
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 || r == 0x202e }) {
			t.Fatalf("%q is shown as %q", answer, out.String())
		}
	})
}

// A record of the HTTP listener that is taken is as safe as flags are.
func FuzzHTTPRecord(f *testing.F) {
	for _, seed := range []string{`{"address":"127.0.0.1:1"}`, `{"address":"0.0.0.0:1","tls_cert":"/a","tls_key":"/b"}`, `{"address":"[::ffff:127.0.0.1]:1"}`, `{"address":""}`, `{}`} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "http.json")
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		r, ok, err := recordedHTTP(path)
		if err != nil || !ok {
			return
		}
		if r.Cert == "" && !r.Address.Addr().Unmap().IsLoopback() || (r.Cert == "") != (r.Key == "") {
			t.Fatalf("%q was taken as %+v", raw, r)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}
