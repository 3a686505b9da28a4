package tools_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

func TestAttachPeerGivesAddressNumberAndPort(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	machine := l.machine(t, "m-1")
	first := l.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": a, "node_instance_id": machine})
	toolstest.Has(t, toolstest.Object{"attached": true, "warnings": []any{}, "peer": toolstest.Object{"network_id": a, "node_instance_id": string(machine),
		"listen_port": 51820.0, "device_name": "wg-sdwan-1", "status": "pending", "public_key": nil, "last_handshake_at": nil, "rx_bytes": nil,
		"effective_endpoint": "192.0.2.11:51820", "effective_endpoint_family": "ipv4", "key_rotation": nil}}, first)
	if address := first["peer"].(toolstest.Object)["assigned_address"].(string); !strings.HasSuffix(address, "::1:0") {
		t.Errorf("first address %s, want the network's ::1:0", address)
	}
	toolstest.Has(t, toolstest.Object{"network": toolstest.Object{"status": "active", "peer_count": 1.0, "spoke_count": 1.0}}, l.Call(t, "system_sdwan_get_network", toolstest.Object{"network_id": a}))

	second := l.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": b, "node_instance_id": machine})
	toolstest.Has(t, toolstest.Object{"peer": toolstest.Object{"listen_port": 51821.0, "device_name": "wg-sdwan-2"}}, second)
	if warnings := objects(t, second["warnings"]); len(warnings) != 1 || warnings[0]["code"] != "listen_port_moved" {
		t.Errorf("warnings %v, want listen_port_moved", warnings)
	}
	if signals := l.Signals(t, "system.sdwan_peer_attached"); len(signals) != 2 {
		t.Errorf("%d signals system.sdwan_peer_attached, want 2", len(signals))
	}
}

func TestAttachPeerRefuses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	machine, peer := l.member(t, a, "m-1")
	gone := l.machine(t, "gone")
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, l.Account.ID, gone)
		if err != nil {
			return err
		}
		i.Status = store.InstanceTerminated
		_, err = store.UpdateInstance(ctx, tx, i)
		return err
	})
	for _, tt := range []struct {
		name string
		more toolstest.Object
		code schema.Code
		text string
	}{
		{"twice", toolstest.Object{"network_id": a}, schema.Conflict, "instance is already a peer of this network"},
		{"a port that another network of the host has", toolstest.Object{"listen_port": 51820}, schema.Conflict, "listen_port 51820 is taken on this host"},
		{"a hub without a host", toolstest.Object{"publicly_reachable": true, "endpoint_port": 51820}, schema.InvalidArguments, "a publicly reachable peer needs endpoint_host"},
		{"a hub without a port", toolstest.Object{"publicly_reachable": true, "endpoint_host": "hub.example.org"}, schema.InvalidArguments, "needs endpoint_port"},
		{"IPv4 for IPv6", toolstest.Object{"endpoint_host_v6": "203.0.113.1"}, schema.InvalidArguments, "endpoint_host_v6 must be an IPv6 literal or a host name"},
		{"IPv6 for IPv4", toolstest.Object{"endpoint_host_v4": "2001:db8::1"}, schema.InvalidArguments, "endpoint_host_v4 must be an IPv4 literal or a host name"},
		{"no host name", toolstest.Object{"endpoint_host": "a b"}, schema.InvalidArguments, "endpoint_host must be a host name or an address"},
		{"an unknown instance", toolstest.Object{"node_instance_id": peer["id"]}, schema.NotFound, "instance not found"},
		{"a terminated instance", toolstest.Object{"node_instance_id": gone}, schema.PreconditionFailed, "instance gone is terminated"},
		{"a misspelt key", toolstest.Object{"endpoint_prot": 51820}, schema.InvalidArguments, "Undeclared parameters: endpoint_prot (did you mean endpoint_port?)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := toolstest.Object{"network_id": b, "node_instance_id": machine}
			for key, value := range tt.more {
				args[key] = value
			}
			err := l.Refused(t, "system_sdwan_attach_peer", args, tt.code, tt.text)
			if tt.name == "twice" && err.Details["peer_id"] != peer["id"] {
				t.Errorf("details %v, want peer_id %v", err.Details, peer["id"])
			}
		})
	}
	l.Call(t, "system_sdwan_update_network", toolstest.Object{"network_id": a, "options": toolstest.Object{"status": "suspended"}})
	l.Refused(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": a, "node_instance_id": l.machine(t, "m-2")}, schema.PreconditionFailed, "network tenant-a is suspended")
}

// A peer is in the others' documents once its agent has reported the key that it made.
func TestReportedKeyOpensTheTunnel(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, _ := l.member(t, a, "m-1")
	two := l.machine(t, "m-2")
	peer := l.attach(t, a, two)
	if s := l.section(t, one, a); len(s.Peers) != 0 || len(s.NotReady) == 0 {
		t.Errorf("before the key: peers %s, not ready %s", spelt(s.Peers), spelt(s.NotReady))
	}
	l.report(t, two, nil)
	s := l.section(t, one, a)
	if len(s.Peers) != 1 || s.Peers[0].PublicKey != keyOf(two, a) || s.Peers[0].PeerID != peer["id"] || s.Peers[0].AllowedIPs[0].Addr().String() != peer["assigned_address"] {
		t.Fatalf("after the key: peers %s", spelt(s.Peers))
	}
	revision := l.Revision(t)
	l.report(t, two, func(r *sdwan.Report) {
		r.Tunnels = []sdwan.TunnelReport{{NetworkID: a, RemotePeerID: s.PeerID, LastHandshakeAt: time.Now(), RXBytes: 7, TXBytes: 8}}
	})
	if after := l.Revision(t); after != revision {
		t.Errorf("counters moved the revision from %d to %d", revision, after)
	}
	toolstest.Has(t, toolstest.Object{"peer": toolstest.Object{"status": "active", "rx_bytes": nil}}, l.Call(t, "system_sdwan_get_peer", toolstest.Object{"peer_id": s.PeerID}))
	got := l.Call(t, "system_sdwan_get_peer", toolstest.Object{"peer_id": peer["id"]})
	toolstest.Has(t, toolstest.Object{"peer": toolstest.Object{"status": "pending", "public_key": keyOf(two, a), "rx_bytes": 7.0, "tx_bytes": 8.0}}, got)
}

func TestReportOfAForeignNetworkIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.network(t, "tenant-a"), l.network(t, "tenant-b")
	one, _ := l.member(t, a, "m-1")
	r := l.said(l.document(t, one))
	r.Keys = append(r.Keys, sdwan.KeyReport{NetworkID: b, PublicKey: keyOf(one, b), Stage: "current"})
	if err := l.ingest(t.Context(), one, r); schema.CodeOf(err) != schema.InvalidArguments {
		t.Errorf("a key of a foreign network: %v, want invalid_arguments", err)
	}
}

// Two machines with one key would be one peer to WireGuard: nothing of the network would compile any more.
func TestKeyOfAnotherPeerIsNotTaken(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, _ := l.member(t, a, "m-1")
	two := l.machine(t, "m-2")
	l.attach(t, a, two)
	l.report(t, two, func(r *sdwan.Report) { r.Keys[0].PublicKey = keyOf(one, a) })
	if s := l.section(t, one, a); len(s.Peers) != 0 {
		t.Errorf("peers %s, want none", spelt(s.Peers))
	}
	if signals := l.Signals(t, "system.host_finding"); len(signals) != 1 || signals[0].Payload["finding"] != "duplicate_identity" {
		t.Errorf("signals %v, want one duplicate_identity", signals)
	}
	l.report(t, two, nil) // a key of its own
	if s := l.section(t, one, a); len(s.Peers) != 1 || len(l.Signals(t, "system.host_finding_cleared")) != 1 {
		t.Errorf("peers %s, want the machine with its own key, and the finding cleared", spelt(s.Peers))
	}
}

// Addresses that agents report count inside one provider region.
func TestReportedEndpointsCountInsideARegion(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, _ := l.member(t, a, "m-1")
	l.member(t, a, "m-2")
	far := l.machineIn(t, "m-3", l.otherRegion(t))
	farPeer := l.attach(t, a, far)
	l.report(t, far, nil)
	s := l.section(t, one, a)
	if len(s.Peers) != 1 || len(s.Peers[0].Endpoints) != 1 || s.Peers[0].Endpoints[0].String() != "192.0.2.12:51820" {
		t.Errorf("peers %s, want the one of the region by its provider's address", spelt(s.Peers))
	}
	got := l.Call(t, "system_sdwan_get_peer", toolstest.Object{"peer_id": farPeer["id"]})
	notReady := objects(t, got["peer"].(toolstest.Object)["not_ready"])
	if !slices.ContainsFunc(notReady, func(n toolstest.Object) bool {
		return n["what"] == "tunnel" && strings.Contains(n["reason"].(string), "no endpoint")
	}) {
		t.Errorf("not_ready %v, want a tunnel without an endpoint", notReady)
	}
}

func TestDetachPeerMovesWhatItHeld(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := l.network(t, "tenant-a")
	one, p1 := l.member(t, a, "m-1")
	two, p2 := l.member(t, a, "m-2")
	held := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "held", "cidr": "auto", "holder_peer_ids": []any{p1["id"]}, "failover_holder_peer_ids": []any{p2["id"]}})["virtual_ip"].(toolstest.Object)
	alone := l.Call(t, "system_sdwan_create_virtual_ip", toolstest.Object{"network_id": a, "name": "alone", "cidr": "auto", "holder_peer_ids": []any{p1["id"]}})["virtual_ip"].(toolstest.Object)

	operation := l.Parked(t, "system_sdwan_detach_peer", toolstest.Object{"peer_id": p1["id"]})
	got := l.Approve(t, operation)
	released := texts(t, got["released_virtual_ip_ids"])
	slices.Sort(released)
	want := []string{alone["id"].(string), held["id"].(string)}
	slices.Sort(want)
	if diff := cmp.Diff(want, released); diff != "" || got["detached"] != true {
		t.Errorf("released (-want +got):\n%s\nof %v", diff, got)
	}
	if d := l.document(t, one); len(d.Networks) != 0 {
		t.Errorf("the detached machine still has %s", spelt(d.Networks))
	}
	if s := l.section(t, two, a); len(s.Peers) != 0 || len(s.VIPs) != 1 || s.VIPs[0].VirtualIPID != held["id"] {
		t.Errorf("the other has peers %s and VIPs %s", spelt(s.Peers), spelt(s.VIPs))
	}
	toolstest.Has(t, toolstest.Object{"virtual_ip": toolstest.Object{"state": "unassigned", "epoch": 2.0, "holder_peer_ids": []any{}}},
		l.Call(t, "system_sdwan_get_virtual_ip", toolstest.Object{"virtual_ip_id": alone["id"]}))
	if signals := l.Signals(t, "system.sdwan_vip_unassigned"); len(signals) != 1 {
		t.Errorf("%d signals system.sdwan_vip_unassigned, want 1", len(signals))
	}
	// Its agent may still report the network that it has left.
	r := sdwan.Report{Keys: []sdwan.KeyReport{{NetworkID: a, PublicKey: keyOf(one, a), Stage: "current"}}}
	if err := l.ingest(t.Context(), one, r); err != nil {
		t.Errorf("a late report: %v", err)
	}
}
