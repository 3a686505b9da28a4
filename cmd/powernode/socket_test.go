package main

import (
	"bufio"
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestSocketIsForThisUserAndRoot(t *testing.T) {
	t.Parallel()
	self := uint32(os.Geteuid())
	for _, tt := range []struct {
		name string
		uid  uint32
		want bool
	}{
		{"this user", self, true},
		{"root", 0, true},
		{"another user", self + 1000, false},
		{"nobody", 65534, self == 65534},
	} {
		if got := ownPeer(&unix.Ucred{Uid: tt.uid}); got != tt.want {
			t.Errorf("%s may connect: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestFramesCarryBytesUntouched(t *testing.T) {
	t.Parallel()
	sent := []frame{{"a-1", []byte("{\"x\":\n 1}\xff\x00")}, {noteID, nil}, {"b", bytes.Repeat([]byte("y"), 100_000)}}
	var wire bytes.Buffer
	for _, f := range sent {
		if err := writeFrame(&wire, f); err != nil {
			t.Fatal(err)
		}
	}
	cut := wire.Bytes()[:wire.Len()-1]
	in := bufio.NewReader(&wire)
	for _, want := range sent {
		got, err := readFrame(in)
		if err != nil || got.id != want.id || !bytes.Equal(got.message, want.message) {
			t.Errorf("frame %s came as %s with %d bytes: %v", want.id, got.id, len(got.message), err)
		}
	}
	for _, broken := range [][]byte{cut, []byte("a"), []byte("a -1\n"), []byte("a 99999999999\n"), []byte("a\n")} {
		r := bufio.NewReader(bytes.NewReader(broken))
		var err error
		for err == nil {
			_, err = readFrame(r)
		}
		if diff := cmp.Diff("EOF", err.Error()); diff == "" {
			t.Errorf("a stream that ends in %.20q reads as whole", broken[max(0, len(broken)-20):])
		}
	}
}
