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
func (s *Service) Decide(ctx context.Context, v *store.View, c Caller, category string, scope Scope) (Verdict, error) {
	if c.Kind == KindPlatform && category != vipFailover {
		if e, err := s.Stopped(ctx, v, c.AccountID); err != nil || e != nil {
			return Block, err
		}
	}
	stand, err := s.standing(ctx, v, c.AccountID)
	if err != nil {
		return "", fmt.Errorf("read policies of %s: %w", category, err)
	}
	verdict, best := Default(category), -1
	for _, r := range stand {
		rank, fits := r.Policy.Scope.rank(c, scope)
		if r.Policy.ActionCategory != category || !fits || rank < best {
			continue
		}
		if rank > best {
			verdict, best = Verdict(r.Policy.Verdict), rank
			continue
		}
		verdict = Stricter(verdict, Verdict(r.Policy.Verdict))
	}
	if verdict, err = s.tightened(ctx, v, c, category, scope, stand, verdict); err != nil {
		return "", err
	}
	if _, known := strictness[verdict]; !known {
		verdict = RequireApproval
	}
	if strings.HasSuffix(category, "_force") {
		verdict = Stricter(verdict, RequireApproval)
	}
	return verdict, nil
}

// tightened lays the rows that are no copy of a signed policy over the verdict that the signed ones give.
func (s *Service) tightened(ctx context.Context, v *store.View, c Caller, category string, of Scope, stand map[string]policyRecord, verdict Verdict) (Verdict, error) {
	rows, err := s.byHand(ctx, v, c.AccountID, category, stand)
	if err != nil {
		return "", err
	}
	for _, row := range rows {
		if _, fits := row.scope.rank(c, of); fits {
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

// rank orders scopes: token, user, cluster or network, role, none. A scope of several kinds, which nobody can set, fits
// nothing.
func (s Scope) rank(c Caller, of Scope) (int, bool) {
	switch {
	case len(s.given()) > 1:
		return 0, false
	case s.TokenID != "":
		return 4, s.TokenID == c.TokenID
	case s.UserID != "":
		return 3, s.UserID == c.UserID
	case s.ClusterID != "":
		return 2, s.ClusterID == of.ClusterID
	case s.NetworkID != "":
		return 2, s.NetworkID == of.NetworkID
	case s.Role != "":
		return 1, s.Role == c.Role
	}
	return 0, true
}
