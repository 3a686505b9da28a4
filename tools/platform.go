package tools

import (
	"github.com/rs/zerolog"

	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/platform/network"
	"powernode/schema"
	"powernode/store"
)

// Platform is what verbs work on: the store and the domain's services. One function makes it, in cmd; tests make it
// with tools/toolstest.
type Platform struct {
	DB         *store.DB
	Sealer     *store.Sealer
	Fleet      *fleet.Service
	Network    *network.Service
	Cluster    *cluster.Service
	Governance *governance.Service
	Log        zerolog.Logger

	verbs  map[string]*Definition
	order  []*Definition // by name
	calls  calls
	reads  reads
	search verbIndex

	sensing sensing
}

// Verbs are the platform's definitions, by name.
func (p *Platform) Verbs() []*Definition { return p.order }

// Lookup finds a verb by its name; a leading "platform." is accepted.
func (p *Platform) Lookup(name string) (*Definition, bool) {
	d, ok := p.verbs[bareName(name)]
	return d, ok
}

// Contract is the declaration of a verb.
func (d *Definition) Contract() *schema.Verb { return d.Verb }

// Name is the verb's name.
func (d *Definition) Name() string { return d.name }
