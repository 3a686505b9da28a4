package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"powernode/platform/network"
	"powernode/sdwan"
	"powernode/store"
)

// Publish compiles the documents that a transaction concerns and writes those that came out different, at the
// transaction's revision. It is the store's Publish.
func (s *Service) Publish(ctx context.Context, tx *store.Tx) error {
	instances, networks := tx.Touched()
	concerned := map[store.InstanceID]bool{}
	for _, id := range instances {
		concerned[id] = true
	}
	for _, id := range networks {
		members, err := s.Network.Members(ctx, &tx.View, id)
		if err != nil {
			return fmt.Errorf("find the members of network %s: %w", id, err)
		}
		for _, id := range members {
			concerned[id] = true
		}
	}
	compiler := s.Network.Compiler()
	for _, id := range slices.Sorted(maps.Keys(concerned)) {
		if err := s.publish(ctx, tx, compiler, id); err != nil {
			return fmt.Errorf("compile the document of instance %s: %w", id, err)
		}
	}
	return nil
}

func (s *Service) publish(ctx context.Context, tx *store.Tx, compiler *network.Compiler, id store.InstanceID) error {
	instance, err := store.InstanceByIDAnyAccount(ctx, &tx.View, id)
	if errors.Is(err, store.ErrNoRow) {
		return nil
	}
	// The last document of a machine that ends, or has ended, stays as it was: nothing is torn down by a document, and its
	// memberships are gone already.
	if err != nil || !instance.Live() || instance.Leaving() {
		return err
	}
	document, err := s.compose(ctx, &tx.View, compiler, instance)
	if err != nil {
		return err
	}
	body, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	hash := hashOf(body)
	_, before, err := store.DocumentHead(ctx, &tx.View, id)
	if err != nil || before == hash {
		return err
	}
	return store.PutDocument(ctx, tx, store.StoredDocument{InstanceID: id, Hash: hash, Body: body})
}

// Document is what an instance is to be, as it was last compiled.
func (s *Service) Document(ctx context.Context, v *store.View, instance store.Instance) (sdwan.Document, error) {
	stored, err := store.DocumentOf(ctx, v, instance.ID)
	if err != nil {
		return sdwan.Document{}, err
	}
	var document sdwan.Document
	if err := json.Unmarshal(stored.Body, &document); err != nil {
		return document, fmt.Errorf("read the document of instance %s: %w", instance.ID, err)
	}
	document.Revision, document.Incarnation = stored.Revision, s.DB.Incarnation()
	return document, nil
}

// ModuleDigests are the digests of the modules that an instance is to carry, as its document was last compiled; nil where
// it has none yet. What a report says against them is drift.
func ModuleDigests(ctx context.Context, v *store.View, instance store.Instance) (map[store.ModuleID]string, error) {
	stored, err := store.DocumentOf(ctx, v, instance.ID)
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var d struct {
		Modules []sdwan.Module `json:"modules"`
	}
	if err := json.Unmarshal(stored.Body, &d); err != nil {
		return nil, fmt.Errorf("read the document of instance %s: %w", instance.ID, err)
	}
	digests := make(map[store.ModuleID]string, len(d.Modules))
	for _, m := range d.Modules {
		digests[store.ModuleID(m.ModuleID)] = m.Digest
	}
	return digests, nil
}

// compose puts the sections of an instance's document together. Revision and incarnation are filled in when it is served.
func (s *Service) compose(ctx context.Context, v *store.View, compiler *network.Compiler, instance store.Instance) (sdwan.Document, error) {
	node, err := store.NodeByID(ctx, v, instance.AccountID, instance.NodeID)
	if err != nil {
		return sdwan.Document{}, fmt.Errorf("find the node: %w", err)
	}
	d := sdwan.Document{PortMappings: []sdwan.PortMapping{}, Instance: sdwan.Instance{ID: string(instance.ID), NodeID: string(node.ID),
		NodeName: node.Name, Name: instance.Name}}
	if d.Networks, d.Firewall, d.Probes, err = compiler.Sections(ctx, v, instance); err != nil {
		return d, fmt.Errorf("networks: %w", err)
	}
	if d.K3s, err = s.Cluster.Section(ctx, v, instance); err != nil {
		return d, fmt.Errorf("k3s: %w", err)
	}
	if d.Modules, err = s.modulesSection(ctx, v, instance, d.K3s); err != nil {
		return d, fmt.Errorf("modules: %w", err)
	}
	if d.Tasks, err = tasksSection(ctx, v, instance); err != nil {
		return d, fmt.Errorf("tasks: %w", err)
	}
	return d, nil
}

// modulesSection is what the node's enabled assignments come to. A version that was not released is not served.
func (s *Service) modulesSection(ctx context.Context, v *store.View, instance store.Instance, k3s sdwan.K3s) ([]sdwan.Module, error) {
	assigned, err := store.AssignmentsByNode(ctx, v, instance.AccountID, instance.NodeID)
	if err != nil {
		return nil, err
	}
	var carried []carriedModule
	for _, a := range assigned {
		if !a.Enabled {
			continue
		}
		m, err := store.ModuleByID(ctx, v, instance.AccountID, a.ModuleID)
		if err != nil {
			return nil, err
		}
		version, err := servedVersion(ctx, v, instance, m, k3s)
		if err != nil {
			return nil, err
		}
		if version == nil || !version.Released() {
			continue
		}
		if m, err = declared(m, *version); err != nil {
			return nil, err
		}
		version.Manifest.V = manifestFor(instance, version.Manifest.V)
		carried = append(carried, carriedModule{m, a, *version})
	}
	section := []sdwan.Module{}
	for _, c := range inAttachOrder(carried, carriedModule.ordered) {
		section = append(section, c.section(instance.Architecture))
	}
	return section, nil
}

// servedVersion is a module's version for an instance: its cluster's for the K3s modules of a member, else the current one.
func servedVersion(ctx context.Context, v *store.View, instance store.Instance, m store.Module, k3s sdwan.K3s) (*store.ModuleVersion, error) {
	var artifact *sdwan.Artifact
	switch {
	case m.Name == "k3s-server" && k3s.Server != nil:
		artifact = k3s.Server.Artifact
	case m.Name == "k3s-agent" && k3s.Agent != nil:
		artifact = k3s.Agent.Artifact
	}
	var version store.ModuleVersion
	var err error
	if artifact != nil {
		version, err = store.ModuleVersionByName(ctx, v, instance.AccountID, m.ID, artifact.Version)
	} else {
		version, err = store.CurrentVersion(ctx, v, m)
	}
	if errors.Is(err, store.ErrNoRow) {
		return nil, nil
	}
	return &version, err
}

// carriedModule is a module that an instance's agent is to carry.
type carriedModule struct {
	module     store.Module
	assignment store.Assignment
	version    store.ModuleVersion
}

func (c carriedModule) ordered() (store.Module, int64) { return c.module, c.assignment.Priority }

func (c carriedModule) section(arch string) sdwan.Module {
	m := sdwan.Module{ModuleID: string(c.module.ID), Name: c.module.Name, Version: c.version.Version,
		Manifest: canonical(c.version.Manifest.V), Config: mustJSON(c.assignment.Config.V)}
	if a, ok := c.version.Artifact(arch); ok {
		m.Artifact = &sdwan.Artifact{Version: c.version.Version, Path: artifactPath(a.SHA256), SHA256: a.SHA256}
	}
	m.Digest = hashOf(mustJSON([]any{m.Version, m.Artifact, m.Manifest}))
	return m
}

// canonical spells a manifest with its keys in order, so that equal ones have equal digests.
func canonical(raw json.RawMessage) json.RawMessage {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return json.RawMessage(`{}`)
	}
	return mustJSON(v)
}

// tasksSection is the work that an instance's agent has not finished.
func tasksSection(ctx context.Context, v *store.View, instance store.Instance) ([]sdwan.Task, error) {
	open, err := store.OpenTasksOf(ctx, v, instance.AccountID, string(instance.ID))
	if err != nil {
		return nil, err
	}
	section := []sdwan.Task{}
	for _, t := range open {
		if t.ByController() {
			continue
		}
		// The step is not told back: what an agent reports must not change its own document.
		section = append(section, sdwan.Task{ID: string(t.ID), Command: t.Command, Parameters: mustJSON(t.Parameters.V)})
	}
	return section, nil
}

// artifactPath is where the agent API serves an artefact, below its base path.
func artifactPath(sha256 string) string { return "/artifacts/" + sha256 }

// names says whether a document names an artefact.
func names(d sdwan.Document, sha256 string) bool {
	if d.K3s.Server != nil && d.K3s.Server.Artifact != nil && d.K3s.Server.Artifact.SHA256 == sha256 {
		return true
	}
	if d.K3s.Agent != nil && d.K3s.Agent.Artifact != nil && d.K3s.Agent.Artifact.SHA256 == sha256 {
		return true
	}
	return slices.ContainsFunc(d.Modules, func(m sdwan.Module) bool { return m.Artifact != nil && m.Artifact.SHA256 == sha256 })
}
