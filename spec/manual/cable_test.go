package manual

import (
	"crypto/rand"
	"encoding/hex"
	"testing"

	"github.com/vishvananda/netlink"
)

// The end of a machine's namespace takes its cable along, in the middle of our own removal too: here two removals meet.
func TestACableThatVanishesWhileItIsRemovedIsGone(t *testing.T) {
	t.Parallel()
	id := make([]byte, 4)
	rand.Read(id)
	name := "pnc" + hex.EncodeToString(id)
	for range 100 {
		ok(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-p"}))
		other := make(chan error, 1)
		go func() { other <- removeLink(name) }()
		ok(t, removeLink(name))
		ok(t, <-other)
	}
}
