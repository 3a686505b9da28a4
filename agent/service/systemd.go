package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
)

// systemd runs services as units. run is systemctl.
type systemd struct {
	o       Options
	unitDir string
	run     func(ctx context.Context, args ...string) (string, error)
}

func runSystemctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("systemctl %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (s *systemd) path(name string) string { return filepath.Join(s.unitDir, name+".service") }

func (s *systemd) Ensure(ctx context.Context, u Unit) error {
	want, err := encodeUnit(u, s.o.AgentBinary)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(s.path(u.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the unit %s: %w", u.Name, err)
	}
	changed := !bytes.Equal(have, want)
	if changed {
		if err := atomicfile.Write(s.path(u.Name), want, 0o644); err != nil {
			return err
		}
	}
	p, err := s.properties(ctx, u.Name)
	if err != nil {
		return err
	}
	// Also what an earlier call that was cut off has left to do.
	if changed || p["NeedDaemonReload"] == "yes" || p["UnitFileState"] != "enabled" {
		if _, err := s.run(ctx, "daemon-reload"); err != nil {
			return err
		}
		if _, err := s.run(ctx, "enable", u.Name+".service"); err != nil {
			return err
		}
	}
	verb := "restart"
	if st := statusOf(p); st.State == Stopped || st.State == Absent {
		verb = "start"
	} else if !changed && p["NeedDaemonReload"] != "yes" {
		return nil
	}
	_, err = s.run(ctx, verb, "--no-block", u.Name+".service")
	return err
}

func (s *systemd) Restart(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	_, err := s.run(ctx, "restart", "--no-block", name+".service")
	return err
}

func (s *systemd) Stop(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	p, err := s.properties(ctx, name)
	if err != nil {
		return err
	}
	end := []string{"disable", "--now", name + ".service"}
	if _, err := os.Stat(s.path(name)); errors.Is(err, fs.ErrNotExist) {
		if is := p["ActiveState"]; is == "" || is == "inactive" {
			return nil
		}
		end = []string{"stop", name + ".service"} // its file is gone, and what it started runs on
	}
	if _, err := s.run(ctx, end...); err != nil {
		return err
	}
	// KillMode=process leaves what the service has started.
	if err := killSystemdGroup(p["ControlGroup"]); err != nil {
		return err
	}
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the unit %s: %w", name, err)
	}
	if _, err := s.run(ctx, "daemon-reload"); err != nil {
		return err
	}
	// A unit that had failed stays listed otherwise; one that hadn't is "not loaded", which is as wanted.
	_, _ = s.run(ctx, "reset-failed", name+".service")
	return nil
}

func (s *systemd) Status(ctx context.Context, name string) (Status, error) {
	if err := checkName(name); err != nil {
		return Status{}, err
	}
	p, err := s.properties(ctx, name)
	if err != nil {
		return Status{}, err
	}
	return statusOf(p), nil
}

// properties are what systemd says of a unit.
func (s *systemd) properties(ctx context.Context, name string) (map[string]string, error) {
	out, err := s.run(ctx, "show", "--property=LoadState,ActiveState,SubState,MainPID,NRestarts,ExecMainStartTimestamp,Result,"+
		"ControlGroup,NeedDaemonReload,UnitFileState", name+".service")
	if err != nil {
		return nil, err
	}
	p := map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			p[k] = v
		}
	}
	return p, nil
}

// statusOf reads them as a status. activating covers the wait between two starts of a service that fails.
func statusOf(p map[string]string) Status {
	var st Status
	st.PID, _ = strconv.Atoi(p["MainPID"])
	st.Restarts, _ = strconv.Atoi(p["NRestarts"])
	if t, err := time.Parse("Mon 2006-01-02 15:04:05 MST", p["ExecMainStartTimestamp"]); err == nil {
		st.Since = t
	}
	switch {
	case p["LoadState"] == "not-found":
		st.State = Absent
	case p["ActiveState"] == "failed", p["SubState"] == "auto-restart":
		st.State, st.Message = Failed, "result "+p["Result"]
	case p["ActiveState"] == "inactive":
		st.State = Stopped
	case p["SubState"] == "exited":
		st.State = Ended
	default:
		st.State = Running
		if p["SubState"] == "start-pre" {
			st.Message = "waiting for its address"
		}
	}
	return st
}

// killSystemdGroup kills what is left in a stopped unit's cgroup, under either hierarchy.
func killSystemdGroup(group string) error {
	if group == "" || group == "/" {
		return nil
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd"} {
		dir := filepath.Join(root, group)
		err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		if err == nil {
			continue
		}
		if err := killListed(filepath.Join(dir, "cgroup.procs")); err != nil {
			return err
		}
	}
	return nil
}

func killListed(procs string) error {
	b, err := os.ReadFile(procs)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // the second: gone since it was opened
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", procs, err)
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// encodeUnit is the one place that writes unit files.
func encodeUnit(u Unit, agentBinary string) ([]byte, error) {
	if err := u.check(); err != nil {
		return nil, err
	}
	lines := slices.Concat(
		[]string{"# Written by powernode-agent; changes are overwritten.", "[Unit]"}, u.unitLines(), []string{"", "[Service]"},
		u.serviceLines(agentBinary), []string{"", "[Install]", "WantedBy=multi-user.target", ""})
	return []byte(strings.Join(lines, "\n")), nil
}

func (u Unit) unitLines() []string {
	lines := []string{"Description=" + literal(u.Description)}
	if u.Name == AgentName { // it brings the network's own part up: nothing to wait for
		lines = append(lines, "After=network.target")
	} else {
		lines = append(lines, "After=network-online.target powernode-agent.service", "Wants=network-online.target")
	}
	return append(lines, "StartLimitIntervalSec=0")
}

func (u Unit) serviceLines(agentBinary string) []string {
	lines := []string{"Type=exec"}
	if u.AwaitAddress.IsValid() {
		lines = append(lines, "ExecStartPre="+quoteAll([]string{agentBinary, "wait-address", u.AwaitAddress.String()}), "TimeoutStartSec=infinity")
	}
	lines = append(lines, "ExecStart="+quoteAll(u.Exec))
	for _, e := range u.Env {
		lines = append(lines, "Environment="+quote(e, false))
	}
	if u.Dir != "" {
		lines = append(lines, "WorkingDirectory="+literal(u.Dir))
	}
	if u.LogFile != "" {
		lines = append(lines, "StandardOutput=append:"+literal(u.LogFile), "StandardError=inherit")
	}
	restart := map[string]string{OnFailure: "on-failure", Never: "no"}[u.Restart]
	lines = append(lines, "Restart="+cmp.Or(restart, "always"))
	if !u.restarts() {
		lines = append(lines, "RemainAfterExit=yes") // so that one that has ended well is not taken for one that was stopped
	}
	core := "infinity"
	if u.Name == AgentName { // its memory holds keys, which are written nowhere else
		core = "0"
	}
	return append(lines, fmt.Sprintf("RestartSec=%d", max(u.RestartSeconds, 1)), fmt.Sprintf("TimeoutStopSec=%d", int(u.grace()/time.Second)),
		"KillMode=process", "Delegate=yes", "LimitNOFILE=1048576", "LimitNPROC=infinity", "LimitCORE="+core, "TasksMax=infinity")
}

// literal keeps systemd from reading specifiers into a text.
func literal(s string) string { return strings.ReplaceAll(s, "%", "%%") }

func quoteAll(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = quote(a, true)
	}
	return strings.Join(out, " ")
}

// quote writes one word for systemd: specifiers, and in command lines variables, are taken literally.
func quote(s string, command bool) string {
	s = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(s)
	if command {
		s = strings.ReplaceAll(s, "$", "$$")
	}
	return `"` + s + `"`
}
