package fleet

import (
	"context"
	"maps"
	"net/http"

	"github.com/rs/zerolog"
	"golang.org/x/sync/singleflight"

	"powernode/platform/cluster"
	"powernode/platform/network"
	"powernode/platform/provider"
	"powernode/store"
)

// Service is the rules of nodes, templates, modules, instances and their provisioning, and of what agents are told and
// tell. Methods that take a transaction open none; those that reach outside (Provision's and Terminate's acts, PowerMachine,
// artefact fetches, Recover, RunTasks) take none.
type Service struct {
	DB        *store.DB
	Network   *network.Service
	Cluster   *cluster.Service
	Providers map[string]provider.Provider // by type
	Sealer    *store.Sealer
	Authority *Authority
	// PlatformURLs are the addresses of the agent API, https://HOST:PORT, as machines reach it; nil: none yet.
	PlatformURLs func() []string
	// Elsewhere is for machines that the platform does not make; nil: none can come in.
	Elsewhere *Elsewhere
	StateDir  string // the artefact store lies below it
	MachineID string // of the platform's own machine; "" when that has none
	// KernelBootID is of the kernel that the platform runs on; "" when it can't be read.
	KernelBootID string
	Log          zerolog.Logger
	// Stopped says whether an account's emergency stop is on: controllers take nothing further then. nil: never.
	Stopped func(ctx context.Context, v *store.View, acct store.AccountID) (bool, error)
	// FetchClient fetches artefacts that a version names by URL; nil is the guarded client (https, public addresses).
	FetchClient *http.Client

	fetches singleflight.Group
	acts    acts
}

// Warning is something that a caller should know of a change that was made.
type Warning struct{ Code, Text string }

func clusterWarnings(in []cluster.Warning) []Warning {
	var out []Warning
	for _, w := range in {
		out = append(out, Warning(w))
	}
	return out
}

// urls are the platform's addresses for machines.
func (s *Service) urls() []string {
	if s.PlatformURLs == nil {
		return []string{}
	}
	return s.PlatformURLs()
}

// audit writes the row of a change. Rows stay for ever: what looks like a secret in a free-form object is hidden in them.
func audit(ctx context.Context, tx *store.Tx, acct store.AccountID, action, resource, id string, old, changed store.Object) error {
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: action, ResourceType: resource, ResourceID: id,
		Old: withoutSecrets(old), New: withoutSecrets(changed)})
	return err
}

// withoutSecrets are a row's values with its free-form objects masked.
func withoutSecrets(values store.Object) store.Object {
	out := maps.Clone(values)
	for _, key := range []string{"config", "specs"} {
		if free, is := out[key].(store.Object); is {
			out[key] = maskSecrets(free)
		}
	}
	return out
}

// Resource types of audit rows.
const (
	resourceNode           = "System::Node"
	resourceInstance       = "System::NodeInstance"
	resourceTemplate       = "System::NodeTemplate"
	resourceTemplateModule = "System::TemplateModule"
	resourceModule         = "System::NodeModule"
	resourceVersion        = "System::NodeModuleVersion"
	resourceAssignment     = "System::NodeModuleAssignment"
	resourceTask           = "System::Task"
	resourceArtifact       = "System::Artifact" // of the installation: in no account's record
	resourcePlatform       = "System::NodePlatform"
)
