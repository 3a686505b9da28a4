package governance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"powernode/store"
)

// vipFailover is what the platform goes on with under an emergency stop: a cluster's API moves to a ready server.
const vipFailover = "system.k3s_api_vip_failover"

// Decide says what the account's policies say of a call: the most specific wins, of equal rank the stricter; without
// one the compiled-in default. What no person has signed can only make the answer stricter. Under an emergency stop the
// platform itself starts nothing new.
func (s *Service) Decide(ctx context.Context, v *store.View, c Caller, category string, reaching Reaching) (Verdict, error) {
	if c.Kind == KindPlatform && category != vipFailover {
		if e, err := s.Stopped(ctx, v, c.AccountID); err != nil || e != nil {
			return Block, err
		}
	}
	stand, err := s.standing(ctx, v, c.AccountID)
	if err != nil {
		return "", fmt.Errorf("read policies of %s: %w", category, err)
	}
	of := &reached{find: reaching}
	verdict, best := Default(category), -1
	var placed []rule
	for _, r := range stand {
		one := rule{r.Policy.Scope, Verdict(r.Policy.Verdict)}
		switch rank, fits := one.scope.rank(c); {
		case r.Policy.ActionCategory != category:
		case one.scope.placed():
			placed = append(placed, one)
		case !fits || rank < best:
		case rank > best:
			verdict, best = one.verdict, rank
		default:
			verdict = Stricter(verdict, one.verdict)
		}
	}
	if best < rankPlace && len(placed) > 0 {
		if verdict, err = of.over(ctx, v, placed, verdict); err != nil {
			return "", err
		}
	}
	if verdict, err = s.tightened(ctx, v, c, category, of, stand, verdict); err != nil {
		return "", err
	}
	if _, known := strictness[verdict]; !known {
		verdict = RequireApproval
	}
	signed, err := s.endsSigned(ctx, v, c.AccountID, category)
	if err != nil {
		return "", err
	}
	if signed || alwaysDecided(category) {
		verdict = Stricter(verdict, RequireApproval)
	}
	return verdict, nil
}

// rule is what a policy says within its scope.
type rule struct {
	scope   Scope
	verdict Verdict
}

// reached is what a call touches, looked for when a policy asks.
type reached struct {
	find Reaching
	is   *Reach
}

func (r *reached) now(ctx context.Context, v *store.View) (Reach, error) {
	if r.is == nil {
		r.is = &Reach{}
		if r.find != nil {
			found, err := r.find(ctx, v)
			if err != nil {
				return Reach{}, err
			}
			r.is = &found
		}
	}
	return *r.is, nil
}

// fits says whether a call touches the cluster or network that a scope speaks of.
func (r *reached) fits(ctx context.Context, v *store.View, s Scope) (bool, error) {
	of, err := r.now(ctx, v)
	_, cluster := of.Clusters[s.ClusterID]
	return cluster || of.Networks[s.NetworkID], err
}

// over lays the policies of clusters and networks over what else is said of a call. A policy of one place says nothing of
// another: a call that touches several needs the strictest of what each of them needs. A cluster needs what its own policy and
// its network's say; a network that is touched for the sake of its cluster alone asks for nothing more.
func (r *reached) over(ctx context.Context, v *store.View, placed []rule, otherwise Verdict) (Verdict, error) {
	of, err := r.now(ctx, v)
	if err != nil {
		return "", err
	}
	clusters, networks := map[store.ClusterID]Verdict{}, map[store.NetworkID]Verdict{}
	for _, p := range placed {
		if p.scope.ClusterID != "" {
			clusters[p.scope.ClusterID] = p.verdict
		} else {
			networks[p.scope.NetworkID] = p.verdict
		}
	}
	needs, fits, through := AutoApprove, false, map[store.NetworkID]bool{}
	need := func(said Verdict, is bool) {
		fits = fits || is
		if !is {
			said = otherwise
		}
		needs = Stricter(needs, said)
	}
	for cluster, network := range of.Clusters {
		own, speaks := clusters[cluster]
		its, too := networks[network]
		if speaks && too {
			own = Stricter(own, its)
		} else if too {
			own = its
		}
		need(own, speaks || too)
		through[network] = true
	}
	for network := range of.Networks {
		if !through[network] {
			said, is := networks[network]
			need(said, is)
		}
	}
	if !fits {
		return otherwise, nil
	}
	return needs, nil
}

// alwaysDecided says whether calls of a category are decided by a human key whatever the policies say: every force.
func alwaysDecided(category string) bool { return strings.HasSuffix(category, "_force") }

// tightened lays the rows that are no copy of a signed policy over the verdict that the signed ones give.
func (s *Service) tightened(ctx context.Context, v *store.View, c Caller, category string, of *reached, stand map[string]policyRecord, verdict Verdict) (Verdict, error) {
	rows, err := s.byHand(ctx, v, c.AccountID, category, stand)
	if err != nil {
		return "", err
	}
	for _, row := range rows {
		_, fits := row.scope.rank(c)
		if row.scope.placed() {
			if fits, err = of.fits(ctx, v, row.scope); err != nil {
				return "", err
			}
		}
		if fits {
			verdict = Stricter(verdict, Verdict(row.Verdict))
		}
	}
	return verdict, nil
}

// handRow is a row of the table of policies that is no copy of a signed one.
type handRow struct {
	store.Policy
	scope Scope
}

// byHand finds such rows, and suspects those that would loosen or pretend a signature.
func (s *Service) byHand(ctx context.Context, v *store.View, acct store.AccountID, category string, stand map[string]policyRecord) ([]handRow, error) {
	rows, err := store.Policies(ctx, v, acct, category)
	if err != nil {
		return nil, fmt.Errorf("read policies of %s: %w", category, err)
	}
	var out []handRow
	for _, row := range rows {
		hand := handRow{Policy: row}
		if err := json.Unmarshal([]byte(row.Scope), &hand.scope); err != nil {
			s.suspect(acct, "policy", string(row.ID))
			continue
		}
		if copied(stand, row, hand.scope) {
			continue
		}
		if rankOf(Verdict(row.Verdict)) < rankOf(Default(row.ActionCategory)) || len(row.Signature) > 0 {
			s.suspect(acct, "policy", string(row.ID))
		}
		out = append(out, hand)
	}
	return out, nil
}

// rankPlace is how specific a policy of a cluster or network is.
const rankPlace = 2

// rank orders scopes: token, user, cluster or network, role, none. Whether a cluster or network fits, the call's reach says. A
// scope of several kinds, which nobody can set, fits nothing.
func (s Scope) rank(c Caller) (rank int, fits bool) {
	switch {
	case len(s.given()) > 1:
		return 0, false
	case s.TokenID != "":
		return 4, s.TokenID == c.TokenID
	case s.UserID != "":
		return 3, s.UserID == c.UserID
	case s.placed():
		return rankPlace, false
	case s.Role != "":
		return 1, s.Role == c.Role
	}
	return 0, true
}

// placed says whether a scope speaks of one cluster or network.
func (s Scope) placed() bool { return len(s.given()) == 1 && (s.ClusterID != "" || s.NetworkID != "") }
