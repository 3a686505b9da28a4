package sensor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"powernode/platform/network"
	"powernode/store"
)

// sweepEvery is how soon conditions whose subject has ended are closed.
const sweepEvery = 5 * time.Second

// sweeper is the name under which the subjects of others' conditions are looked at.
const sweeper = "ended_subjects"

// subjects say, for the kinds that are opened where something is told and not by a sensor, whether the subject is there still.
var subjects = map[string]func(ctx context.Context, v *store.View, acct store.AccountID, subject string) (bool, error){
	"system.agent_subsystem_failed":             liveInstance,
	"system.instance.cordoned":                  liveInstance,
	"system.instance.held":                      liveInstance,
	"system.k3s_bootstrap_blocked":              liveInstance,
	"system.k3s_join_blocked":                   liveInstance,
	"system.k3s_ambiguous_cluster_join_refused": liveInstance,
	"system.host_finding":                       peerIsThere,
	"system.sdwan_isolation_leak":               networksAreThere,
	"system.sdwan_address_overlap":              reporterIsMember,
}

// liveInstance is for subjects that begin with the id of an instance.
func liveInstance(ctx context.Context, v *store.View, acct store.AccountID, subject string) (bool, error) {
	id, _, _ := strings.Cut(subject, ":")
	i, err := store.InstanceByID(ctx, v, acct, store.InstanceID(id))
	if errors.Is(err, store.ErrNoRow) {
		return false, nil
	}
	return i.Live(), err
}

// peerIsThere is for a peer's id; a finding of a host has another subject, and its sensor.
func peerIsThere(ctx context.Context, v *store.View, acct store.AccountID, subject string) (bool, error) {
	if strings.Contains(subject, ":") {
		return true, nil
	}
	_, err := store.PeerByID(ctx, v, acct, store.PeerID(subject))
	if errors.Is(err, store.ErrNoRow) {
		return false, nil
	}
	return true, err
}

// networksAreThere is for the ids of two networks: nothing leaks from or to one that has ended.
func networksAreThere(ctx context.Context, v *store.View, acct store.AccountID, subject string) (bool, error) {
	from, to, _ := strings.Cut(subject, ":")
	for _, id := range []string{from, to} {
		n, err := store.NetworkByID(ctx, v, acct, store.NetworkID(id))
		if errors.Is(err, store.ErrNoRow) || (err == nil && n.Status == network.StatusArchived) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// reporterIsMember is for a range of pods that two machines report: the claim ends with the membership of the later one.
func reporterIsMember(ctx context.Context, v *store.View, acct store.AccountID, subject string) (bool, error) {
	last, err := store.LastSignalOf(ctx, v, acct, Fingerprint("system.sdwan_address_overlap", subject))
	if errors.Is(err, store.ErrNoRow) {
		return true, nil // nobody knows who
	}
	if err != nil {
		return false, err
	}
	_, err = store.ClusterNodeByInstance(ctx, v, acct, last.NodeInstanceID)
	if errors.Is(err, store.ErrNoRow) {
		return false, nil
	}
	return err == nil, err
}

// sweep closes what is open about instances, peers and networks that have ended.
func (s *Service) sweep(ctx context.Context, acct store.AccountID) error {
	var gone []change
	err := s.DB.View(ctx, func(v *store.View) error {
		if !s.due(acct, Sensor{Name: sweeper, Every: sweepEvery}, v.Now(), 0) {
			return nil
		}
		s.lookedAt(acct, Sensor{Name: sweeper}, v.Now(), 0)
		var err error
		gone, err = ended(ctx, v, acct)
		return err
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	return s.DB.Update(ctx, func(tx *store.Tx) error {
		still, err := ended(ctx, &tx.View, acct)
		if err != nil {
			return err
		}
		for _, c := range still {
			if err := c.write(ctx, tx, acct, sweeper); err != nil {
				return err
			}
		}
		return nil
	})
}

func ended(ctx context.Context, v *store.View, acct store.AccountID) ([]change, error) {
	open, err := store.Conditions(ctx, v, acct)
	if err != nil {
		return nil, fmt.Errorf("read open conditions: %w", err)
	}
	var out []change
	for _, c := range open {
		isThere := subjects[c.Kind]
		if isThere == nil {
			continue
		}
		there, err := isThere(ctx, v, acct, SubjectOf(c.Fingerprint))
		if err != nil {
			return nil, fmt.Errorf("look for the subject of %s: %w", c.Fingerprint, err)
		}
		if !there {
			out = append(out, change{kind: c.Kind, subject: SubjectOf(c.Fingerprint)})
		}
	}
	return out, nil
}
