package governance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"powernode/schema"
	"powernode/store"
)

// Reach is what a call touches of what a policy's scope can speak of: the clusters and networks where that lies which its
// arguments name.
type Reach struct {
	Clusters map[store.ClusterID]store.NetworkID // with the network that each lies in
	Networks map[store.NetworkID]bool
}

// Reaching finds it, for a gate that has a policy to ask; nil: the call touches no cluster and no network.
type Reaching func(ctx context.Context, v *store.View) (Reach, error)

// ReachOf is the reach of what lies in one network, and in one cluster; an empty id is none.
func ReachOf(cluster store.ClusterID, network store.NetworkID) Reach {
	r := Reach{Clusters: map[store.ClusterID]store.NetworkID{}, Networks: map[store.NetworkID]bool{}}
	r.in(cluster, network)
	return r
}

func (r Reach) in(cluster store.ClusterID, network store.NetworkID) {
	if cluster != "" {
		r.Clusters[cluster] = network
	}
	if network != "" {
		r.Networks[network] = true
	}
}

// place is how a kind of object lies in clusters and networks.
type place struct {
	clusters, networks bool // it may lie in such
	find               func(s *search, id string) error
}

// places are the kinds of objects that lie in a cluster or network, by the kind as parameters call it. Every other kind
// (modules, providers, platforms, sensors) is the whole account's.
var places = map[string]place{
	"access_grant":         {false, true, (*search).grant},
	"assignment":           {true, true, (*search).assignment},
	"cluster":              {true, true, (*search).cluster},
	"failover_holder_peer": {true, true, (*search).peer},
	"holder_peer":          {true, true, (*search).peer},
	"instance":             {true, true, (*search).instance},
	"network":              {false, true, (*search).network},
	"node":                 {true, true, (*search).node},
	"node_instance":        {true, true, (*search).instance},
	"node_template":        {true, true, (*search).template},
	"peer":                 {true, true, (*search).peer},
	"sdwan_network":        {false, true, (*search).network}, // in a template's config
	"target_cluster":       {true, true, (*search).cluster},  // in the config of a module on a template or node
	"task":                 {true, true, (*search).task},
	"template":             {true, true, (*search).template},
	"virtual_ip":           {true, true, (*search).virtualIP},
}

// reachable says whether calls of a verb can touch clusters, and networks, by what its parameters take the ids of.
func reachable(verb *schema.Verb) (clusters, networks bool) {
	for _, parameter := range verb.Parameters() {
		at := places[verb.Subject(parameter)]
		if parameter == "config" && verb.Subject("id") == "template" {
			at = places["sdwan_network"]
		}
		clusters, networks = clusters || at.clusters, networks || at.networks
	}
	return clusters, networks
}

// ReachOfCall finds what a call touches. What its arguments name and the account has not, the call's check refuses.
func ReachOfCall(ctx context.Context, v *store.View, acct store.AccountID, verb *schema.Verb, arguments json.RawMessage) (Reach, error) {
	r := ReachOf("", "")
	if clusters, networks := reachable(verb); !clusters && !networks {
		return r, nil // what its free-form arguments name is no object that it touches
	}
	var given store.Object
	if err := json.Unmarshal(arguments, &given); err != nil {
		return r, fmt.Errorf("read the arguments of %s: %w", verb.Name, err)
	}
	s := &search{ctx: ctx, v: v, acct: acct, verb: verb, found: r}
	if err := s.within(given); err != nil {
		return r, fmt.Errorf("find what %s touches: %w", verb.Name, err)
	}
	return r, nil
}

// search looks for the clusters and networks of what one call names.
type search struct {
	ctx   context.Context
	v     *store.View
	acct  store.AccountID
	verb  *schema.Verb
	found Reach
}

func (s *search) within(arguments store.Object) error {
	for key, value := range arguments {
		at, lies := places[s.verb.Subject(key)]
		var ids []any
		switch value := value.(type) {
		case map[string]any:
			within := s.within
			if key == "config" {
				within = s.configured
			}
			if err := within(value); err != nil {
				return err
			}
			continue
		case []any:
			ids = value
		default:
			ids = []any{value}
		}
		for _, each := range ids {
			id, _ := each.(string)
			if !lies || id == "" {
				continue
			}
			if err := at.find(s, id); err != nil && !errors.Is(err, store.ErrNoRow) {
				return err
			}
		}
	}
	return nil
}

// configured is what the config in a call's arguments names: a template's its network, a module's its cluster. Whatever else
// somebody writes into a free-form object is nothing that the call touches.
func (s *search) configured(config store.Object) error {
	about := s.verb.Subject("id")
	switch {
	case about == "template":
		network, _ := config["sdwan_network_id"].(string)
		return s.network(network)
	case strings.Contains(about, "module"):
		return s.targeted(store.Object{"target_cluster_id": config["target_cluster_id"]})
	}
	return nil
}

// network is a network alone: a policy of a cluster that lies in it says nothing of the network.
func (s *search) network(id string) error {
	s.found.in("", store.NetworkID(id))
	return nil
}

func (s *search) cluster(ref string) error {
	c, err := store.ClusterByRef(s.ctx, s.v, s.acct, ref)
	if err != nil {
		return err
	}
	s.found.in(c.ID, c.NetworkID)
	return nil
}

// instance is a machine: it lies in the networks of its peers and in the cluster that it is a member or the first server of.
func (s *search) instance(id string) error {
	peers, err := store.PeersByInstance(s.ctx, s.v, s.acct, store.InstanceID(id))
	if err != nil {
		return err
	}
	for _, p := range peers {
		s.found.in("", p.NetworkID)
	}
	return s.membership(store.InstanceID(id))
}

func (s *search) membership(id store.InstanceID) error {
	member, err := store.ClusterNodeByInstance(s.ctx, s.v, s.acct, id)
	switch {
	case err == nil:
		return s.cluster(string(member.ClusterID))
	case !errors.Is(err, store.ErrNoRow):
		return err
	}
	clusters, err := store.Clusters(s.ctx, s.v, s.acct)
	for _, c := range clusters {
		if c.BootstrapInstanceID == id {
			s.found.in(c.ID, c.NetworkID)
		}
	}
	return err
}

// node lies where its machines do, and where its template and assignments would have them.
func (s *search) node(id string) error {
	n, err := store.NodeByID(s.ctx, s.v, s.acct, store.NodeID(id))
	if err != nil {
		return err
	}
	instances, err := store.InstancesByNode(s.ctx, s.v, s.acct, n.ID)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if !i.Live() {
			continue
		}
		if err := s.instance(string(i.ID)); err != nil {
			return err
		}
	}
	assignments, err := store.AssignmentsByNode(s.ctx, s.v, s.acct, n.ID)
	if err != nil {
		return err
	}
	for _, a := range assignments {
		if err := s.targeted(a.Config.V); err != nil {
			return err
		}
	}
	return s.template(string(n.TemplateID))
}

func (s *search) assignment(id string) error {
	a, err := store.AssignmentByID(s.ctx, s.v, s.acct, store.AssignmentID(id))
	if err != nil {
		return err
	}
	return s.node(string(a.NodeID))
}

// template lies where it would have machines: in its network, and in the clusters that its modules join.
func (s *search) template(id string) error {
	t, err := store.TemplateByID(s.ctx, s.v, s.acct, store.TemplateID(id))
	if err != nil {
		return err
	}
	if err := s.targeted(t.Config.V); err != nil {
		return err
	}
	modules, err := store.TemplateModules(s.ctx, s.v, s.acct, t.ID)
	for _, m := range modules {
		err = errors.Join(err, s.targeted(m.Config.V))
	}
	return err
}

// targeted is where the config of a template, or of a module on one or on a node, would have machines. A target that is gone is none.
func (s *search) targeted(config store.Object) error {
	network, _ := config["sdwan_network_id"].(string)
	s.found.in("", store.NetworkID(network))
	cluster, _ := config["target_cluster_id"].(string)
	if err := s.cluster(cluster); err != nil && !errors.Is(err, store.ErrNoRow) {
		return err
	}
	return nil
}

// peer lies in its network, and where its machine is a member.
func (s *search) peer(id string) error {
	p, err := store.PeerByID(s.ctx, s.v, s.acct, store.PeerID(id))
	if err != nil {
		return err
	}
	s.found.in("", p.NetworkID)
	return s.membership(p.InstanceID)
}

// virtualIP lies where those do that may hold it.
func (s *search) virtualIP(id string) error {
	ip, err := store.VirtualIPByID(s.ctx, s.v, s.acct, store.VirtualIPID(id))
	if err != nil {
		return err
	}
	s.found.in(ip.ClusterID, ip.NetworkID)
	for _, id := range slices.Concat(ip.HolderPeerIDs, ip.FailoverHolderPeerIDs) {
		if err := s.peer(string(id)); err != nil && !errors.Is(err, store.ErrNoRow) {
			return err
		}
	}
	return nil
}

func (s *search) grant(id string) error {
	g, err := store.AccessGrantByID(s.ctx, s.v, s.acct, store.AccessGrantID(id))
	if err != nil {
		return err
	}
	return s.network(string(g.NetworkID))
}

func (s *search) task(id string) error {
	t, err := store.TaskByID(s.ctx, s.v, s.acct, store.TaskID(id))
	if err != nil {
		return err
	}
	return s.instance(t.OperableID) // tasks of others lie nowhere
}
