package tools_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"powernode/sdwan"
	"powernode/store"
	"powernode/tools/toolstest"
)

// lab is a platform with machines that are rows, and agents that the test plays.
type lab struct {
	*toolstest.Env
	template store.TemplateID
	region   store.RegionID
	provider store.ProviderID
	kind     store.InstanceTypeID
	machines int
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return labIn(t, toolstest.New(t))
}

func labIn(t *testing.T, env *toolstest.Env) *lab {
	t.Helper()
	l := &lab{Env: env}
	l.Platform.Fleet.DB = l.Platform.DB
	l.Platform.Network.PlatformURL = func() string { return "https://192.0.2.1:7443" }
	l.Platform.Network.CAFingerprint = func() string { return "c0ffee" }
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		platforms, err := store.Platforms(ctx, &tx.View, l.Account.ID)
		if err != nil {
			return err
		}
		made, err := store.InsertTemplate(ctx, tx, store.Template{ID: store.TemplateID(tx.NewID()), AccountID: l.Account.ID, Name: "base",
			PlatformID: platforms[0].ID, Enabled: true, AdminUser: "root", Config: store.JSON[store.Object]{V: store.Object{}}})
		if err != nil {
			return err
		}
		l.template = made.ID
		regions, err := store.Regions(ctx, &tx.View, l.Account.ID, "")
		if err != nil {
			return err
		}
		l.region, l.provider = regions[0].ID, regions[0].ProviderID
		kinds, err := store.InstanceTypes(ctx, &tx.View, l.Account.ID, l.provider)
		if err != nil {
			return err
		}
		l.kind = kinds[0].ID
		return nil
	})
	return l
}

// otherRegion makes a region from whose machines the first region's reported endpoints can't be used.
func (l *lab) otherRegion(t *testing.T) store.RegionID {
	t.Helper()
	var id store.RegionID
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		id = store.RegionID(tx.NewID())
		return store.InsertRegion(ctx, tx, store.Region{ID: id, AccountID: l.Account.ID, ProviderID: l.provider, Name: "elsewhere", RegionCode: "elsewhere", Enabled: true})
	})
	return id
}

// machine makes a running instance with its node.
func (l *lab) machine(t *testing.T, name string) store.InstanceID {
	t.Helper()
	return l.machineIn(t, name, l.region)
}

func (l *lab) machineIn(t *testing.T, name string, region store.RegionID) store.InstanceID {
	t.Helper()
	l.machines++
	var id store.InstanceID
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		node, err := store.InsertNode(ctx, tx, store.Node{ID: store.NodeID(tx.NewID()), AccountID: l.Account.ID, Name: name, TemplateID: l.template,
			Enabled: true, Config: store.JSON[store.Object]{V: store.Object{}}})
		if err != nil {
			return err
		}
		i, err := store.InsertInstance(ctx, tx, store.Instance{ID: store.InstanceID(tx.NewID()), AccountID: l.Account.ID, NodeID: node.ID, Name: name,
			Variety: "local", Status: store.InstanceRunning, Architecture: "amd64", ProviderID: l.provider, RegionID: region, InstanceTypeID: l.kind,
			Config: store.JSON[store.Object]{V: store.Object{}}, PrivateIP: store.Addr{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + l.machines)})}})
		id = i.ID
		return err
	})
	return id
}

// network makes a network through the call path.
func (l *lab) network(t *testing.T, name string) string {
	t.Helper()
	return l.Call(t, "system_sdwan_create_network", toolstest.Object{"name": name})["network"].(toolstest.Object)["id"].(string)
}

// attach makes an instance a peer through the call path.
func (l *lab) attach(t *testing.T, network string, instance store.InstanceID) toolstest.Object {
	t.Helper()
	return l.Call(t, "system_sdwan_attach_peer", toolstest.Object{"network_id": network, "node_instance_id": instance})["peer"].(toolstest.Object)
}

// member makes a machine, attaches it and lets its agent report for the first time; it answers instance and peer.
func (l *lab) member(t *testing.T, network, name string) (store.InstanceID, toolstest.Object) {
	t.Helper()
	id := l.machine(t, name)
	p := l.attach(t, network, id)
	l.report(t, id, nil)
	return id, p
}

// keyOf is the key that the agent of an instance made for a network.
func keyOf(id store.InstanceID, network string) string {
	sum := sha256.Sum256([]byte(string(id) + network))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// said is what an agent reports that has applied its document.
func (l *lab) said(d sdwan.Document) sdwan.Report {
	r := sdwan.Report{BootID: "boot", AgentVersion: "test", HostRoutesRead: true, HostRoutes: []sdwan.HostRoute{}, Tunnels: []sdwan.TunnelReport{}}
	for _, name := range []string{"wireguard", "firewall", "vip"} {
		r.Subsystems = append(r.Subsystems, sdwan.SubsystemReport{Name: name, AppliedRevision: d.Revision, State: "ok"})
	}
	for _, n := range d.Networks {
		r.Keys = append(r.Keys, sdwan.KeyReport{NetworkID: n.NetworkID, PublicKey: keyOf(store.InstanceID(d.Instance.ID), n.NetworkID), Stage: "current"})
	}
	return r
}

// report lets an instance's agent report what it applied; change may change what it says.
func (l *lab) report(t *testing.T, id store.InstanceID, change func(*sdwan.Report)) {
	t.Helper()
	d := l.document(t, id)
	r := l.said(d)
	if change != nil {
		change(&r)
	}
	if err := l.ingest(t.Context(), id, r); err != nil {
		t.Fatalf("report of %s: %v", id, err)
	}
}

func (l *lab) ingest(ctx context.Context, id store.InstanceID, r sdwan.Report) error {
	return l.Platform.DB.Update(ctx, func(tx *store.Tx) error {
		instance, err := store.InstanceByIDAnyAccount(ctx, &tx.View, id)
		if err != nil {
			return err
		}
		return l.Platform.Fleet.Ingest(ctx, tx, instance, r)
	})
}

// document is what an instance is to be.
func (l *lab) document(t *testing.T, id store.InstanceID) (d sdwan.Document) {
	t.Helper()
	d, err := l.documentOf(t.Context(), id)
	if err != nil {
		t.Fatalf("document of %s: %v", id, err)
	}
	return d
}

func (l *lab) documentOf(ctx context.Context, id store.InstanceID) (d sdwan.Document, err error) {
	err = l.Platform.DB.View(ctx, func(v *store.View) error {
		instance, err := store.InstanceByIDAnyAccount(ctx, v, id)
		if err != nil {
			return err
		}
		d, err = l.Platform.Fleet.Document(ctx, v, instance)
		if errors.Is(err, store.ErrNoRow) {
			return nil
		}
		return err
	})
	d.Instance.ID = string(id)
	return d, err
}

// section is an instance's part of a network.
func (l *lab) section(t *testing.T, id store.InstanceID, network string) sdwan.Network {
	t.Helper()
	d := l.document(t, id)
	i := slices.IndexFunc(d.Networks, func(n sdwan.Network) bool { return n.NetworkID == network })
	if i < 0 {
		t.Fatalf("the document of %s has no network %s", id, network)
	}
	return d.Networks[i]
}

// play runs an agent for each instance, which answers its probes by the function, until the test ends.
func (l *lab) play(t *testing.T, answer func(sdwan.Probe) string, change func(*sdwan.Report), ids ...store.InstanceID) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var agents sync.WaitGroup
	t.Cleanup(func() { stop(); agents.Wait() })
	for _, id := range ids {
		agents.Go(func() {
			for {
				changed := l.Platform.DB.Watch(store.TopicDocument(id))
				if err := l.answer(ctx, id, answer, change); err != nil && ctx.Err() == nil {
					t.Errorf("agent of %s: %v", id, err)
					return
				}
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

func (l *lab) answer(ctx context.Context, id store.InstanceID, answer func(sdwan.Probe) string, change func(*sdwan.Report)) error {
	d, err := l.documentOf(ctx, id)
	if err != nil {
		return err
	}
	r := l.said(d)
	if change != nil {
		change(&r)
	}
	for _, p := range d.Probes {
		r.Probes = append(r.Probes, sdwan.ProbeReport{ID: p.ID, Result: answer(p), RTTMS: 0.5})
	}
	return l.ingest(ctx, id, r)
}

// texts are the strings of a list in a result.
func texts(t *testing.T, list any) []string {
	t.Helper()
	out := []string{}
	for _, each := range list.([]any) {
		out = append(out, fmt.Sprint(each))
	}
	return out
}

// objects are the objects of a list in a result.
func objects(t *testing.T, list any) []toolstest.Object {
	t.Helper()
	out := []toolstest.Object{}
	for _, each := range list.([]any) {
		out = append(out, each.(toolstest.Object))
	}
	return out
}

// spelt is a value as one line of JSON, for messages.
func spelt(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// assign puts a K3s module with a target on an instance's node.
func (l *lab) assign(t *testing.T, id store.InstanceID, module string, target any) {
	t.Helper()
	l.Update(t, func(ctx context.Context, tx *store.Tx) error {
		i, err := store.InstanceByID(ctx, &tx.View, l.Account.ID, id)
		if err != nil {
			return err
		}
		m, err := store.ModuleByName(ctx, &tx.View, l.Account.ID, module)
		if err != nil {
			return err
		}
		a := store.Assignment{ID: store.AssignmentID(tx.NewID()), AccountID: l.Account.ID, NodeID: i.NodeID, ModuleID: m.ID, Enabled: true}
		a.Config.V = store.Object{"target_cluster_id": target}
		if _, err := store.InsertAssignment(ctx, tx, a); err != nil {
			return err
		}
		return l.Platform.Cluster.AssignmentChanged(ctx, tx, l.Account.ID, i.NodeID)
	})
}
