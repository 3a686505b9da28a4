package tools

import (
	"cmp"
	"context"
	"time"

	"powernode/platform/network"
	"powernode/store"
)

func isolationVerbs() []*Definition {
	return []*Definition{verifyIsolation()}
}

// probesAwaited bounds how long the answer waits for agents: what is not answered then is not measured.
const probesAwaited = 20 * time.Second

type verifyIsolationArgs struct {
	NetworkIDs []store.NetworkID `json:"network_ids"`
}

type isolatedNetwork struct {
	ID     store.NetworkID `json:"id"`
	Name   string          `json:"name"`
	CIDR64 string          `json:"cidr_64"`
}

type isolationPair struct {
	FromNetworkID store.NetworkID `json:"from_network_id"`
	ToNetworkID   store.NetworkID `json:"to_network_id"`
	Expected      string          `json:"expected"`
	Computed      string          `json:"computed"`
	Probed        string          `json:"probed"`
}

type isolationLeak struct {
	FromPeerID store.PeerID `json:"from_peer_id"`
	ToAddress  string       `json:"to_address"`
	Why        string       `json:"why"`
}

type isolationAllowed struct {
	FromNetworkID store.NetworkID `json:"from_network_id"`
	ToNetworkID   store.NetworkID `json:"to_network_id"`
	By            string          `json:"by"`
	ID            string          `json:"id"`
}

type isolationProbe struct {
	FromPeerID store.PeerID `json:"from_peer_id"`
	Target     string       `json:"target"`
	Protocol   string       `json:"protocol"`
	Result     string       `json:"result"`
	RTTMS      *float64     `json:"rtt_ms"`
	MeasuredAt *store.Time  `json:"measured_at"`
}

type staleAgent struct {
	InstanceID store.InstanceID `json:"instance_id"`
	Why        string           `json:"why"`
}

type verifyIsolationResult struct {
	Verdict     string             `json:"verdict"`
	Networks    []isolatedNetwork  `json:"networks"`
	Matrix      []isolationPair    `json:"matrix"`
	Leaks       []isolationLeak    `json:"leaks"`
	Allowed     []isolationAllowed `json:"allowed"`
	Probes      []isolationProbe   `json:"probes"`
	StaleAgents []staleAgent       `json:"stale_agents"`

	run network.Isolation // between intent and outcome
}

// verifyIsolation asks agents for probes, waits for their answers outside any transaction, and judges.
func verifyIsolation() *Definition {
	return define("system_sdwan_verify_isolation", handler[verifyIsolationArgs, verifyIsolationResult]{
		check: func(ctx context.Context, p *Platform, v *store.View, c Caller, a verifyIsolationArgs) error {
			return p.Network.CheckIsolation(ctx, v, c.AccountID, a.NetworkIDs)
		},
		run: func(ctx context.Context, p *Platform, tx *store.Tx, c Caller, a verifyIsolationArgs) (r verifyIsolationResult, err error) {
			r.run, err = p.Network.AskIsolation(ctx, tx, c.AccountID, a.NetworkIDs)
			return r, err
		},
		act: func(ctx context.Context, p *Platform, c Caller, _ verifyIsolationArgs, intent verifyIsolationResult) outcome[verifyIsolationResult] {
			bounded, cancel := context.WithTimeout(ctx, probesAwaited)
			defer cancel()
			failed := p.Network.AwaitIsolation(bounded, p.DB, c.AccountID, intent.run)
			return func(ctx context.Context, tx *store.Tx) (r verifyIsolationResult, refusal error, err error) {
				if failed != nil {
					return r, nil, failed
				}
				j, err := p.Network.JudgeIsolation(ctx, tx, c.AccountID, intent.run)
				return viewJudgement(j), nil, err
			}
		},
	})
}

func viewJudgement(j network.Judgement) verifyIsolationResult {
	r := verifyIsolationResult{Verdict: j.Verdict, Networks: []isolatedNetwork{}, Matrix: []isolationPair{}, Leaks: []isolationLeak{},
		Allowed: []isolationAllowed{}, Probes: []isolationProbe{}, StaleAgents: []staleAgent{}}
	for _, n := range j.Networks {
		r.Networks = append(r.Networks, isolatedNetwork{ID: n.ID, Name: n.Name, CIDR64: n.CIDR.String()})
	}
	for _, m := range j.Matrix {
		r.Matrix = append(r.Matrix, isolationPair{m.From, m.To, m.Expected, m.Computed, m.Probed})
	}
	for _, l := range j.Leaks {
		r.Leaks = append(r.Leaks, isolationLeak{l.FromPeerID, l.ToAddress, l.Why})
	}
	for _, a := range j.Allowed {
		r.Allowed = append(r.Allowed, isolationAllowed{a.From, a.To, a.By, a.ID})
	}
	for _, p := range j.Probes {
		r.Probes = append(r.Probes, isolationProbe{FromPeerID: p.FromPeerID, Target: p.Target.String(), Protocol: p.Protocol,
			Result: cmp.Or(p.Result, network.NotMeasured), RTTMS: p.RTTMS, MeasuredAt: p.MeasuredAt})
	}
	for _, s := range j.StaleAgents {
		r.StaleAgents = append(r.StaleAgents, staleAgent{s.InstanceID, s.Why})
	}
	return r
}
