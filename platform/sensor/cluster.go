package sensor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"powernode/platform/cluster"
	"powernode/platform/signal"
	"powernode/store"
)

const (
	kindMember = "system.k3s_etcd_member_unhealthy"
	kindQuorum = "system.k3s_quorum_at_risk"
)

func (s *Service) clusterSensors() []Sensor {
	return []Sensor{{Name: "k3s_etcd", Kinds: []string{kindMember, kindQuorum}, Every: 5 * time.Second, Look: lookEtcd,
		Thresholds: []Threshold{{Name: "grace_seconds", Default: 60, Minimum: 1, Maximum: day}}}}
}

func membersOf(ctx context.Context, v *store.View, acct store.AccountID) ([]store.ClusterNode, error) {
	clusters, err := store.Clusters(ctx, v, acct)
	if err != nil {
		return nil, err
	}
	var out []store.ClusterNode
	for _, c := range clusters {
		members, err := store.ClusterNodes(ctx, v, acct, c.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, members...)
	}
	return out, nil
}

// lookEtcd compares the members of etcd with the servers of the cluster, and asks what one more loss would do.
func lookEtcd(ctx context.Context, v *store.View, in Input) ([]Observation, error) {
	clusters, err := store.Clusters(ctx, v, in.Account)
	if err != nil {
		return nil, err
	}
	var out []Observation
	for _, c := range clusters {
		seen, err := in.etcd(ctx, v, c)
		if err != nil {
			return nil, fmt.Errorf("look at cluster %s: %w", c.Name, err)
		}
		out = append(out, seen...)
	}
	return out, nil
}

func (in Input) etcd(ctx context.Context, v *store.View, c store.Cluster) ([]Observation, error) {
	about := signal.Subject{ClusterID: c.ID, NetworkID: c.NetworkID}
	members, err := store.ClusterNodes(ctx, v, in.Account, c.ID)
	if err != nil {
		return nil, err
	}
	var out []Observation
	servers, heardOf, healthy := 0, 0, 0
	for _, n := range members {
		if n.Role != cluster.RoleServer || n.JoinedAt == nil {
			continue
		}
		servers++
		h, err := store.HealthOfClusterNode(ctx, v, n.ID)
		if err != nil && !errors.Is(err, store.ErrNoRow) {
			return nil, err
		}
		o := Observation{Kind: kindMember, Subject: string(n.ID), About: about}
		o.About.InstanceID, o.About.NodeID = n.InstanceID, n.NodeID
		if h.EtcdHealthy != nil && v.Now().Sub(h.ReportedAt.Time) <= heardFor {
			heardOf++
			o.Payload = store.Object{"member": n.Name, "reason": printed(h.Detail.V.Message)}
			if *h.EtcdHealthy {
				healthy++
				o.State = Well
			} else {
				o.State = in.grace(v.Now(), o.Subject)
			}
		}
		out = append(out, o)
	}
	counted, err := in.memberCount(ctx, v, c, servers)
	if err != nil {
		return nil, err
	}
	counted.About = about
	risk := Observation{Kind: kindQuorum, Subject: string(c.ID), About: about}
	quorum := servers/2 + 1
	if heardOf > 0 { // a server that nobody heard of does not count as healthy
		risk.Payload = store.Object{"members": servers, "healthy": healthy, "quorum": quorum}
		risk.State = Well
		if healthy < servers && healthy <= quorum {
			risk.State = in.grace(v.Now(), kindQuorum+risk.Subject)
		}
	}
	return append(out, counted, risk), nil
}

// memberCount compares how many members etcd tells of with how many servers have joined.
func (in Input) memberCount(ctx context.Context, v *store.View, c store.Cluster, servers int) (Observation, error) {
	o := Observation{Kind: kindMember, Subject: string(c.ID)}
	h, err := store.HealthOfCluster(ctx, v, c.ID)
	if errors.Is(err, store.ErrNoRow) {
		return o, nil
	}
	if err != nil || h.Detail.V.EtcdMembers == nil || v.Now().Sub(h.MeasuredAt.Time) > heardFor {
		return o, err
	}
	told := *h.Detail.V.EtcdMembers
	o.Payload = store.Object{"member": nil, "reason": fmt.Sprintf("etcd has %d members, the cluster %d servers", told, servers)}
	o.State = Well
	if told != servers {
		o.State = in.grace(v.Now(), o.Subject)
	}
	return o, nil
}

// grace is the state of something that is wrong: only after its time it counts.
func (in Input) grace(now time.Time, key string) State {
	if in.lasted(now, key, now) >= in.Values.duration("grace_seconds") {
		return Wrong
	}
	return NotMeasured
}
