package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"powernode/platform/provider"
	"powernode/store"
)

// builtinK3sVersion is the version that the built-in modules start with; its artefact is the official release, pinned.
const (
	builtinK3sVersion = "v1.36.5+k3s1"
	builtinK3sURL     = "https://github.com/k3s-io/k3s/releases/download/v1.36.5%2Bk3s1/k3s"
	builtinK3sSHA256  = "d73847bcd3c5fccef0115b372e2f9a91f3032dc84bbf71518a4617565294d313"
)

const labelsAndTaints = `
	"node_labels": {"type": "object", "description": "labels that K3s gives the node at registration", "additionalProperties": {"type": "string"}},
	"node_taints": {"type": "array", "description": "taints key=value:effect that K3s gives the node at registration",
		"items": {"type": "string", "pattern": "^[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$"}}`

const serverConfigSchema = `{"type": "object", "additionalProperties": false, "properties": {
	"target_cluster_id": {"type": "string", "description": "join this cluster as a further control-plane member; absent: start a new cluster"},
	"network_id": {"type": "string", "format": "uuid", "description": "network of a new cluster, needed when the instance has peers in several"},
	"cni_plugin": {"type": "string", "enum": ["flannel", "ovn_kubernetes"], "description": "of a new cluster"},` + labelsAndTaints + `}}`

const agentConfigSchema = `{"type": "object", "additionalProperties": false, "properties": {
	"target_cluster_id": {"type": "string", "description": "join this cluster"},` + labelsAndTaints + `}}`

// builtinModules are what each account starts with.
var builtinModules = []struct{ name, description, configSchema string }{
	{"k3s-server", "K3s control plane: a new cluster, or a member of the one that target_cluster_id names.", serverConfigSchema},
	{"k3s-agent", "K3s worker: joins the cluster that target_cluster_id names.", agentConfigSchema},
}

var builtinArchitectures = []store.Architecture{
	{Name: "amd64", Family: "x86", AptName: "amd64", RPMName: "x86_64", DisplayName: "x86-64", IsCanonical: true, Enabled: true},
	{Name: "arm64", Family: "arm", AptName: "arm64", RPMName: "aarch64", DisplayName: "64-bit ARM", IsCanonical: true, Enabled: true},
}

// Seed gives an account what it starts with: platforms, the built-in modules, and the provider local. It is done once.
func (s *Service) Seed(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	_, err := store.ModuleByName(ctx, &tx.View, acct, builtinModules[0].name)
	if !errors.Is(err, store.ErrNoRow) {
		return err
	}
	for _, seed := range []func(context.Context, *store.Tx, store.AccountID) error{seedPlatforms, seedModules, seedLocal} {
		if err := seed(ctx, tx, acct); err != nil {
			return fmt.Errorf("seed an account: %w", err)
		}
	}
	return nil
}

func seedPlatforms(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	known, err := store.Architectures(ctx, &tx.View)
	if err != nil {
		return err
	}
	if len(known) == 0 {
		for _, a := range builtinArchitectures {
			a.ID = store.ArchitectureID(tx.NewID())
			if err := store.InsertArchitecture(ctx, tx, a); err != nil {
				return err
			}
			known = append(known, a)
		}
	}
	for _, a := range known {
		p := store.Platform{ID: store.PlatformID(tx.NewID()), AccountID: acct, Name: "linux-" + a.Name, ArchitectureID: a.ID, OS: "linux",
			Enabled: true, Description: "Linux on " + a.DisplayName}
		if err := store.InsertPlatform(ctx, tx, p); err != nil {
			return err
		}
	}
	return nil
}

func seedModules(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	for _, b := range builtinModules {
		m := store.Module{ID: store.ModuleID(tx.NewID()), AccountID: acct, Name: b.name, Variety: "instance", Description: b.description,
			Enabled: true, Locked: true, Priority: 100, Config: store.JSON[store.Object]{V: store.Object{}}}
		m.Dependencies.V = store.Dependencies{Requires: []string{}, Recommends: []string{}, Conflicts: []string{}, Provides: []string{}}
		m.ConfigSchema.V = json.RawMessage(compact(b.configSchema))
		m.CurrentVersionID = store.ModuleVersionID(tx.NewID())
		if _, err := store.InsertModule(ctx, tx, m); err != nil {
			return err
		}
		version := store.ModuleVersion{ID: m.CurrentVersionID, AccountID: acct, ModuleID: m.ID, Version: builtinK3sVersion,
			PromotionState: "live", MadeBy: "built_in", EverLive: true}
		version.Manifest.V = json.RawMessage(`{}`)
		version.Artifacts.V = []store.VersionArtifact{{OS: "linux", Arch: "amd64", URL: builtinK3sURL, SHA256: builtinK3sSHA256}}
		if _, err := store.InsertModuleVersion(ctx, tx, version); err != nil {
			return err
		}
	}
	return nil
}

func seedLocal(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
	p := store.Provider{ID: store.ProviderID(tx.NewID()), AccountID: acct, Name: "local", ProviderType: "local", Enabled: true,
		Description: "Machines on this host, each in namespaces of its own.", Config: store.JSON[store.Object]{V: store.Object{}}}
	if err := store.InsertProvider(ctx, tx, p); err != nil {
		return err
	}
	region := regionOf(p, provider.LocalRegion())
	region.ID = store.RegionID(tx.NewID())
	if err := store.InsertRegion(ctx, tx, region); err != nil {
		return err
	}
	for _, size := range provider.LocalSizes() {
		t := instanceTypeOf(p, size)
		t.ID = store.InstanceTypeID(tx.NewID())
		if err := store.InsertInstanceType(ctx, tx, t); err != nil {
			return err
		}
	}
	return nil
}

// compact spells JSON that stands in this package's code without white space.
func compact(raw string) []byte {
	var v any
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		panic("a built-in declaration is no JSON: " + err.Error()) // a test seeds them all
	}
	return mustJSON(v)
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // values that came out of JSON go into it
	}
	return b
}
