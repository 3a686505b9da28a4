package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"powernode/platform/provider"
	"powernode/schema"
	"powernode/store"
)

// AgentProgram is the agent's program as the agent API serves it to machines that have none yet.
type AgentProgram struct{ SHA256, Architecture, Path string }

// Elsewhere is what machines that the platform does not make need to come in. Its functions reach nothing outside: they
// may be called in a transaction.
type Elsewhere struct {
	URLs     func() []string // https://HOST:PORT of the agent API; empty: the operator has named no address
	CASHA256 func() string   // of the CA's certificate (DER), hex
	Agent    func() (AgentProgram, error)
}

// AgentURLs are the platform's addresses as a machine reaches them. They may open a listener: never ask in a transaction.
func (s *Service) AgentURLs(variety string) []string {
	if variety == varietyPhysical && s.Elsewhere != nil {
		return s.Elsewhere.URLs()
	}
	return s.urls()
}

// CheckReachable says why machines elsewhere can't reach the platform.
func (s *Service) CheckReachable() error {
	if s.Elsewhere != nil && len(s.Elsewhere.URLs()) > 0 {
		return nil
	}
	return schema.Errorf(schema.PreconditionFailed, "no address of this platform is reachable for machines elsewhere: "+
		"an operator names one with powernode serve --agents ADDRESS")
}

// byHand says that machines of a provider type are enrolled by whoever runs them.
func (s *Service) byHand(providerType string) bool {
	a := s.Providers[providerType]
	return a != nil && provider.Can(a, provider.CapabilityEnrollment)
}

// Enrollment is how somebody brings a machine in.
type Enrollment struct {
	Command   string
	ExpiresAt store.Time
}

const underlayNote = "attached to a network, the machine takes in WireGuard and answers alone on its other interfaces: " +
	"sessions that are open stay, new ones (ssh too) come in over the network only"

// EnrollmentOf is the command that enrols an instance's machine, for providers that make none; nil for the others, and once
// the command was used or its time is over.
func (s *Service) EnrollmentOf(ctx context.Context, v *store.View, i store.Instance) (*Enrollment, []Warning, error) {
	p, err := store.ProviderByID(ctx, v, i.AccountID, i.ProviderID)
	if err != nil || !s.byHand(p.ProviderType) {
		return nil, nil, err
	}
	warnings := []Warning{{"underlay_is_locked", underlayNote}}
	if i.EnrollmentToken == nil {
		return nil, warnings, nil
	}
	raw, err := s.Sealer.Open(tokenPurpose(i.ID), i.EnrollmentToken)
	if err != nil {
		return nil, nil, fmt.Errorf("open the enrolment token of instance %s: %w", i.ID, err)
	}
	secret := store.Secret(raw)
	token, err := store.EnrollmentTokenByHash(ctx, v, secret.Hash())
	if err != nil {
		return nil, nil, err
	}
	if !v.Now().Before(token.ExpiresAt.Time) {
		return nil, append(warnings, Warning{"enrolment_expired",
			"the enrolment command has expired unused: terminate the instance and provision another"}), nil
	}
	if err := s.CheckReachable(); err != nil {
		return nil, append(warnings, Warning{"enrolment_unavailable", err.Error()}), nil
	}
	program, err := s.Elsewhere.Agent()
	if err != nil {
		s.Log.Error().Err(err).Msg("the agent's program can't be read")
		return nil, append(warnings, Warning{"enrolment_unavailable", "this platform can't read the agent's program"}), nil
	}
	if program.Architecture != i.Architecture {
		warnings = append(warnings, Warning{"agent_not_fetched", "this platform has the agent for " + program.Architecture +
			" alone: put powernode-agent for " + i.Architecture + " to " + agentPath + " before the command runs"})
	}
	return &Enrollment{Command: s.command(i, program, secret), ExpiresAt: token.ExpiresAt}, warnings, nil
}

// agentPath is where the agent's program stands on a machine.
const agentPath = "/usr/local/bin/powernode-agent"

// command is one line for root's shell. What it fetches becomes executable only after its SHA-256 fits, which comes with the
// command; that is why the addresses it is fetched from, tried in turn and past any proxy, need no proof. The token goes by a
// pipe from the shell's own printf: no process ever has it as an argument. The agent sends it to the CA of that fingerprint alone.
func (s *Service) command(i store.Instance, program AgentProgram, token store.Secret) string {
	var quoted strings.Builder
	urls := s.Elsewhere.URLs()
	for _, url := range urls {
		quoted.WriteString(" '" + url + "'")
	}
	var b strings.Builder
	b.WriteString(`( [ "$(id -u)" = 0 ] || { echo "run this as root" >&2; exit 1; }; b=` + agentPath)
	if program.Architecture == i.Architecture {
		fmt.Fprintf(&b, ` s=%s; echo "$s  $b" | sha256sum -c --status 2>/dev/null || { t=$(mktemp "$b.XXXXXX")`+
			` && for u in%s; do curl -gfsSk --noproxy '*' --connect-timeout 10 -o "$t" "$u%s$s" && break; done`+
			` && echo "$s  $t" | sha256sum -c --quiet && chmod 755 "$t" && mv "$t" "$b"`+
			` || { rm -f "$t"; exit 1; }; }`, program.SHA256, quoted.String(), program.Path)
	}
	fmt.Fprintf(&b, `; printf %%s '%s' | "$b" install --instance %s --ca-sha256 %s`, token.Reveal(), i.ID, s.Elsewhere.CASHA256())
	for _, url := range urls {
		fmt.Fprintf(&b, ` --url '%s'`, url)
	}
	b.WriteString(" --token-file /dev/stdin )")
	return b.String()
}

// handTokenOver forgets the token that a used command carried.
func handTokenOver(ctx context.Context, tx *store.Tx, i store.Instance) (store.Instance, error) {
	if i.EnrollmentToken == nil || i.Intent == store.IntentCreate {
		return i, nil // the act still needs it
	}
	i.EnrollmentToken = nil
	return store.UpdateInstance(ctx, tx, i)
}

// noRow says that a look-up found nothing.
func noRow(err error) bool { return errors.Is(err, store.ErrNoRow) }
