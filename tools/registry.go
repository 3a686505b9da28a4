package tools

import (
	"errors"
	"fmt"
	"strings"

	"powernode/schema"
)

// definitions are all verbs: one function a resource file adds its own to the list, and nothing registers itself.
func definitions() []*Definition {
	var all []*Definition
	for _, list := range [][]*Definition{
		governanceVerbs(),
		signalVerbs(),
		sensorVerbs(),
		kubernetesVerbs(),
		nodeVerbs(),
		instanceVerbs(),
		powerVerbs(),
		cordonVerbs(),
		livenessVerbs(),
		templateVerbs(),
		platformVerbs(),
		moduleVerbs(),
		assignmentVerbs(),
		providerVerbs(),
		connectionVerbs(),
		taskVerbs(),
		networkVerbs(),
		peerVerbs(),
		virtualIPVerbs(),
		firewallRuleVerbs(),
		accessGrantVerbs(),
		deviceVerbs(),
		routingVerbs(),
		isolationVerbs(),
	} {
		all = append(all, list...)
	}
	return all
}

// Register binds the contract's declarations to the verbs' behaviour, and the fleet's controllers to the emergency stop. A declaration without behaviour, or behaviour
// without a declaration, is an error: nothing is listed that doesn't run. What has both is registered all the same.
func (p *Platform) Register() error {
	contract, err := schema.Verbs()
	if err != nil {
		return err
	}
	if p.Fleet != nil {
		p.Fleet.Stopped = p.stopped
	}
	if p.Governance != nil {
		p.Governance.Gated = p.gatedBy
	}
	var faults []error
	p.verbs, p.order = map[string]*Definition{}, nil
	behaviour := map[string]*Definition{}
	for _, d := range definitions() {
		if _, twice := behaviour[d.name]; twice {
			faults = append(faults, fmt.Errorf("verb %s is defined twice", d.name))
		}
		behaviour[d.name] = d
	}
	for _, v := range contract {
		d, ok := behaviour[v.Name]
		if !ok {
			faults = append(faults, fmt.Errorf("verb %s is declared and has no behaviour", v.Name))
			continue
		}
		own := *d // definitions are shared between platforms of one process
		own.Verb, own.keyed = v, repeatable(v)
		p.verbs[v.Name] = &own
		p.order = append(p.order, &own)
	}
	for name := range behaviour {
		if p.verbs[name] == nil {
			faults = append(faults, fmt.Errorf("verb %s has behaviour and no declaration", name))
		}
	}
	return errors.Join(faults...)
}

func bareName(name string) string { return strings.TrimPrefix(name, "platform.") }
