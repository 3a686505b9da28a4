package k3s

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"powernode/agent"
	"powernode/agent/artifact"
	"powernode/agent/atomicfile"
	"powernode/agent/service"
	"powernode/nodeapi"
	"powernode/sdwan"
)

// Waits of a pass that isn't done: short, because each looks at something that is about to come.
const (
	addressPoll = 100 * time.Millisecond
	apiPoll     = 300 * time.Millisecond
	waitPoll    = 5 * time.Second
)

// Reconcile looks at the host and does what is not so, in order. What takes time is left to itself and looked at again.
func (s *Subsystem) Reconcile(ctx context.Context, doc *sdwan.Document) error {
	s.pass.Lock()
	defer s.pass.Unlock()
	st, err := s.state.read()
	if err != nil {
		return err
	}
	t := wanted(doc.K3s)
	t.leaving, t.document = doc.Instance.Leave, fmt.Sprintf("%s %d", doc.Incarnation, doc.Revision)
	defer func() { s.publish(t, st) }()
	switch {
	case t.role == "":
		return nil
	case t.absent:
		return s.remove(ctx, t, &st)
	case st.Cleaned, st.Role != "" && st.Role != t.role && leaves(doc.K3s, st.Role):
		if err := s.remove(ctx, t.before(st.Role, st.ClusterID), &st); err != nil {
			return err
		}
	case st.Role == "" && leaves(doc.K3s, otherRole(t.role)): // nothing is known of it here, and the platform waits for a word
		old := t.before(otherRole(t.role), "")
		if s.told == old.key() {
			break // the next document says so; what is there by now is the new role's
		}
		if err := s.remove(ctx, old, &st); err != nil {
			return err
		}
	case st.Role != "" && st.Role != t.role:
		return fmt.Errorf("this machine is a K3s %s; it becomes a %s only once the platform takes that away", st.Role, t.role)
	}
	return s.install(ctx, t, &st)
}

func runtimeOf(role string) string {
	if role == roleAgent {
		return nodeapi.RuntimeK3sAgent
	}
	return nodeapi.RuntimeK3sServer
}

func otherRole(role string) string {
	if role == roleAgent {
		return roleServer
	}
	return roleAgent
}

func (s *Subsystem) install(ctx context.Context, t target, st *state) error {
	member := st.ClusterID != ""
	if t.mode == "wait" && !member {
		return &agent.Pending{Reason: "not_ready: " + t.reason, After: waitPoll}
	}
	if member && t.clusterID != "" && st.ClusterID != t.clusterID {
		return fmt.Errorf("this machine is a member of cluster %s, the document names %s: moving is an operation of its own", st.ClusterID, t.clusterID)
	}
	if t.role == roleAgent && !member && !t.nodeIP.IsValid() {
		return s.askUnresolved(ctx, t)
	}
	if err := s.ensureAddress(t); err != nil {
		return err
	}
	if err := s.ensureBinary(ctx, t); err != nil {
		return err
	}
	if err := s.ensureJoined(ctx, t, st); err != nil {
		return err
	}
	s.publish(t, *st)
	restart, err := s.ensureConfig(t, st)
	if err != nil {
		return err
	}
	if err := s.ensureRunning(ctx, t, st, restart); err != nil {
		return err
	}
	s.publish(t, *st)
	version, err := s.ensureUp(ctx, t)
	if err != nil {
		return err
	}
	if err := s.ensureBootstrapped(ctx, t, st, version); err != nil {
		return err
	}
	return s.ensureReady(ctx, t, st, version)
}

// ensureAddress waits for the interface: a K3s that starts before it chooses another address.
func (s *Subsystem) ensureAddress(t target) error {
	if !t.nodeIP.IsValid() || t.nodeName == "" {
		return &agent.Pending{Reason: "not_ready: the document has no node address yet", After: waitPoll}
	}
	has, err := s.o.HasAddress(t.nodeIP)
	if err != nil {
		return err
	}
	if !has {
		return &agent.Pending{Reason: fmt.Sprintf("no interface has the node's address %s yet", t.nodeIP), After: addressPoll}
	}
	return nil
}

// ensureBinary fetches the pinned K3s and puts it in place; nothing is executable before its SHA-256 fits.
func (s *Subsystem) ensureBinary(ctx context.Context, t target) error {
	if t.artifact == nil {
		return errors.New("the document names no K3s binary")
	}
	if s.InPlace(t.artifact.SHA256) {
		return nil
	}
	path, err := s.o.Store.Fetch(ctx, *t.artifact)
	if err != nil {
		return err
	}
	if err := artifact.Place(path, s.root.path(binaryPath), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil { // it stands in its place; once is enough
		return fmt.Errorf("remove the fetched artefact: %w", err)
	}
	s.o.Log.Info().Str("version", t.artifact.Version).Str("sha256", t.artifact.SHA256).Msg("k3s: binary in place")
	return nil
}

// ensureJoined asks for join material where there is none for this cluster, token generation and endpoint.
func (s *Subsystem) ensureJoined(ctx context.Context, t target, st *state) error {
	joined, err := s.joined(t, st)
	if joined || err != nil {
		return err
	}
	p, err := s.o.Platform()
	if err != nil {
		return err
	}
	key := t.role + t.clusterID
	req := nodeapi.HandshakeRequest{Runtime: t.runtime, Phase: nodeapi.PhaseJoinRequest, TargetClusterID: t.clusterID}
	ans, err := p.Handshake(ctx, req)
	if err != nil {
		return s.joinError(err, key)
	}
	if err := checkAnswer(t, st, ans); err != nil {
		return &agent.Later{Err: err, After: s.joins.next(key)}
	}
	s.joins.reset()
	return s.keepJoin(t, st, ans)
}

// askUnresolved asks to join where the document names no cluster: the platform alone can say why, and tells it to others
// too. Nothing is kept of an answer: the document that follows a change of mind has the address.
func (s *Subsystem) askUnresolved(ctx context.Context, t target) error {
	p, err := s.o.Platform()
	if err != nil {
		return err
	}
	if _, err := p.Handshake(ctx, nodeapi.HandshakeRequest{Runtime: t.runtime, Phase: nodeapi.PhaseJoinRequest}); err != nil {
		return s.joinError(err, t.role)
	}
	s.joins.reset()
	return &agent.Pending{Reason: "not_ready: the document has no node address yet", After: waitPoll}
}

// joined compares contents: a token file that isn't what we wrote is asked for again.
func (s *Subsystem) joined(t target, st *state) (bool, error) {
	if st.ClusterID == "" || t.generation > st.TokenGeneration || (t.endpoint != "" && t.endpoint != st.APIEndpoint) {
		return false, nil
	}
	for path, want := range map[string]string{serverTokenPath: st.ServerTokenHash, agentTokenPath: st.AgentTokenHash} {
		if want == "" {
			continue
		}
		b, err := os.ReadFile(s.root.path(path))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read a token file: %w", err)
		}
		if hashOf(string(b)) != want {
			return false, nil
		}
	}
	return true, nil
}

// joinError says with which class the platform refused, and when to ask again.
func (s *Subsystem) joinError(err error, key string) error {
	var e *nodeapi.Error
	if !errors.As(err, &e) {
		return &agent.Later{Err: fmt.Errorf("join_request: %w", err), After: s.joins.next(key)}
	}
	if e.HTTPStatus == http.StatusServiceUnavailable {
		after := time.Duration(max(e.RetryAfter, 1)) * time.Second
		return &agent.Pending{Reason: "join_request: " + e.Message, After: after}
	}
	name := e.Class
	if name == "" {
		name = e.Code
	}
	return &agent.Later{Err: fmt.Errorf("join_request: %s (HTTP %d): %s", name, e.HTTPStatus, e.Message), After: s.joins.next(key)}
}

// checkAnswer refuses material that is not for this member: tokens of another cluster would encrypt its data.
func checkAnswer(t target, st *state, a nodeapi.HandshakeAnswer) error {
	switch {
	case a.ClusterID == "":
		return errors.New("join_request: the answer names no cluster")
	case st.ClusterID != "" && a.ClusterID != st.ClusterID:
		return fmt.Errorf("join_request: the answer is for cluster %s, this machine is a member of %s", a.ClusterID, st.ClusterID)
	case t.clusterID != "" && a.ClusterID != t.clusterID:
		return fmt.Errorf("join_request: the answer is for cluster %s, the document names %s", a.ClusterID, t.clusterID)
	case a.Mode != "init" && a.Mode != "join":
		return fmt.Errorf("join_request: mode %q", a.Mode)
	case a.Mode == "init" && t.role != roleServer:
		return errors.New("join_request: a worker can't start a cluster")
	case a.Mode == "join" && !strings.HasPrefix(a.ServerURL, "https://"):
		return errors.New("join_request: the answer names no server")
	case a.NodeIP != "" && a.NodeIP != t.nodeIP.String():
		return fmt.Errorf("join_request: the answer is for address %s, the document's is %s", a.NodeIP, t.nodeIP)
	case a.NodeName != "" && a.NodeName != t.nodeName:
		return fmt.Errorf("join_request: the answer is for node %s, the document's is %s", a.NodeName, t.nodeName)
	case a.AgentToken == "" || (t.role == roleServer) != (a.ServerToken != ""):
		return errors.New("join_request: the answer has not the tokens of a " + t.role)
	}
	return nil
}

// keepJoin writes the tokens, then the state that says so.
func (s *Subsystem) keepJoin(t target, st *state, a nodeapi.HandshakeAnswer) error {
	if err := os.MkdirAll(filepath.Dir(s.root.path(configPath)), 0o755); err != nil {
		return fmt.Errorf("make K3s' configuration directory: %w", err)
	}
	next := *st
	next.Role, next.ClusterID, next.Mode, next.TokenGeneration = t.role, a.ClusterID, a.Mode, a.TokenGeneration
	next.APIEndpoint, next.ServerURL = a.APIEndpoint, a.ServerURL
	if t.endpoint != "" {
		next.APIEndpoint = t.endpoint
	}
	if t.role == roleServer {
		if err := atomicfile.Write(s.root.path(serverTokenPath), []byte(a.ServerToken+"\n"), 0o600); err != nil {
			return err
		}
		next.ServerTokenHash = hashOf(a.ServerToken + "\n")
	}
	if err := atomicfile.Write(s.root.path(agentTokenPath), []byte(a.AgentToken+"\n"), 0o600); err != nil {
		return err
	}
	next.AgentTokenHash = hashOf(a.AgentToken + "\n")
	if err := s.state.write(next); err != nil {
		return err
	}
	*st = next
	s.told = ""
	s.o.Log.Info().Str("cluster_id", a.ClusterID).Str("mode", a.Mode).Str("role", t.role).Msg("k3s: join material")
	return nil
}

// ensureConfig writes the configuration file and says whether K3s must be restarted for it. A key that a K3s which has
// started once can't change is left alone and becomes a finding.
func (s *Subsystem) ensureConfig(t target, st *state) (restart bool, err error) {
	server := st.ServerURL
	if st.Mode == "init" {
		server = ""
	}
	want, err := render(t, server, s.o.CgroupV1)
	if err != nil {
		return false, err
	}
	path := s.root.path(configPath)
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read K3s' configuration file: %w", err)
	}
	if bytes.Equal(want, have) {
		s.findings.set(s.now(), nil)
		return false, nil
	}
	if err == nil && s.hasStarted(t.role) {
		diffs, err := differences(want, have)
		if err != nil {
			return false, err
		}
		var fixed []difference
		for _, d := range diffs {
			if critical[d.key] {
				fixed = append(fixed, d)
			}
		}
		s.findings.set(s.now(), fixed)
		if len(fixed) > 0 {
			return false, nil
		}
		restart = len(diffs) > 0
	} else {
		restart = err == nil // a K3s that doesn't come up takes the new file sooner
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("make K3s' configuration directory: %w", err)
	}
	if err := atomicfile.Write(path, want, 0o600); err != nil {
		return false, err
	}
	s.o.Log.Info().Bool("restart", restart).Msg("k3s: configuration written")
	return restart, nil
}

// hasStarted says whether K3s has made its data: from then on many keys are fixed.
func (s *Subsystem) hasStarted(role string) bool {
	if role == roleServer {
		return exists(s.root.path(etcdMemberPath))
	}
	return exists(s.root.path(kubeletConfigPath))
}

// ensureRunning makes the unit be there and started, and restarts it for another binary or configuration.
func (s *Subsystem) ensureRunning(ctx context.Context, t target, st *state, restart bool) error {
	u := service.Unit{Name: unitOf(t.role), Description: "K3s " + t.role, Exec: []string{binaryPath, t.role},
		RestartSeconds: 2, AwaitAddress: t.nodeIP}
	if s.o.LogToFile {
		u.LogFile = logPath
	}
	before, err := s.o.Services.Status(ctx, u.Name)
	if err != nil {
		return err
	}
	if err := s.o.Services.Ensure(ctx, u); err != nil {
		return err
	}
	sum := t.artifact.SHA256
	restart = restart || (st.BinarySHA256 != "" && st.BinarySHA256 != sum)
	if restart && before.State == service.Running {
		s.o.Log.Info().Msg("k3s: restarting")
		if err := s.o.Services.Restart(ctx, u.Name); err != nil {
			return err
		}
	}
	if st.BinarySHA256 == sum {
		return nil
	}
	st.BinarySHA256 = sum
	return s.state.write(*st)
}

// ensureUp answers the version that runs, once it answers.
func (s *Subsystem) ensureUp(ctx context.Context, t target) (string, error) {
	version, err := s.askVersion(ctx, t)
	if err == nil {
		return version, nil
	}
	st, serr := s.o.Services.Status(ctx, unitOf(t.role))
	if serr != nil {
		return "", serr
	}
	if st.State != service.Running {
		return "", &agent.Later{Err: fmt.Errorf("k3s %s %s: %s%s", t.role, st.State, st.Message, s.lastWords()), After: quickEvery}
	}
	return "", &agent.Pending{Reason: "K3s starts: " + err.Error(), After: apiPoll}
}

func (s *Subsystem) askVersion(ctx context.Context, t target) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	if t.role == roleAgent {
		k, err := openKube(s.root, kubeletConfigPath)
		if err != nil {
			return "", errors.New("the worker has no certificate yet")
		}
		defer k.close()
		n, err := k.node(ctx, t.nodeName)
		return n.Status.NodeInfo.KubeletVersion, err
	}
	k, err := openKube(s.root, kubeconfigPath)
	if err != nil {
		return "", errors.New("no kubeconfig yet")
	}
	defer k.close()
	if !k.ready(ctx, k.server) {
		return "", errors.New("the API server is not ready")
	}
	return k.version(ctx)
}

// lastWords is the end of K3s' log, for a message.
func (s *Subsystem) lastWords() string {
	f, err := os.Open(s.root.path(logPath))
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, min(info.Size(), 4096))
	n, err := f.ReadAt(buf, info.Size()-int64(len(buf)))
	if n == 0 && err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	last := lines[len(lines)-1]
	return "; it said: " + last[:min(len(last), 300)]
}

// ensureBootstrapped tells the platform the first server's kubeconfig and version, again whenever one is another.
func (s *Subsystem) ensureBootstrapped(ctx context.Context, t target, st *state, version string) error {
	if t.role != roleServer || st.Mode != "init" {
		return nil
	}
	text, err := os.ReadFile(s.root.path(kubeconfigPath))
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	key := hashOf(st.ClusterID, version, string(text))
	if st.Bootstrapped == key {
		return nil
	}
	req := nodeapi.HandshakeRequest{Runtime: t.runtime, Phase: nodeapi.PhaseBootstrap, Kubeconfig: string(text), K8sVersion: version}
	if err := s.tell(ctx, req); err != nil {
		return err
	}
	st.Bootstrapped = key
	return s.state.write(*st)
}

// ensureReady tells once for every cluster, version and boot that this member is up.
func (s *Subsystem) ensureReady(ctx context.Context, t target, st *state, version string) error {
	key := strings.Join([]string{st.ClusterID, version, s.o.BootID}, " ")
	if st.Ready == key {
		return nil
	}
	req := nodeapi.HandshakeRequest{Runtime: t.runtime, Phase: nodeapi.PhaseReady, ClusterID: st.ClusterID, K8sVersion: version, Role: t.role}
	if err := s.tell(ctx, req); err != nil {
		return err
	}
	st.Ready = key
	return s.state.write(*st)
}

// tell sends a phase that has no answer to act on.
func (s *Subsystem) tell(ctx context.Context, req nodeapi.HandshakeRequest) error {
	p, err := s.o.Platform()
	if err == nil {
		_, err = p.Handshake(ctx, req)
	}
	var e *nodeapi.Error
	if errors.As(err, &e) && e.HTTPStatus == http.StatusServiceUnavailable {
		return &agent.Pending{Reason: req.Phase + ": " + e.Message, After: time.Duration(max(e.RetryAfter, 1)) * time.Second}
	}
	if err != nil {
		return &agent.Later{Err: fmt.Errorf("%s: %w", req.Phase, err), After: s.joins.next(req.Phase)}
	}
	s.joins.reset()
	return nil
}
