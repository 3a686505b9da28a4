package manual

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"powernode/spec/rig"
)

// carries puts a module on a node whose machine has systemd and dpkg, and leaves it there: what comes after, a reboot
// and the machine's leaving, concerns it too.
func (s *site) carries(t *testing.T, node, instance string) {
	t.Helper()
	module := s.released(t, "racked", rig.Object{"packages": []string{"dpkg"},
		"files": []rig.Object{{"path": "/etc/racked/name", "content": "ada"}},
		"services": []rig.Object{{"name": "racked", "exec": "/bin/sleep", "args": []string{"1000"}, "env": rig.Object{"A": "b"}},
			{"name": "racked-once", "exec": "/bin/mkdir", "args": []string{"/run/racked-once"}, "restart": "never"}}})
	s.must(t, "system_assign_module_to_node", rig.Object{"node_id": node, "module_id": module})
	s.awaitInside(t, "the service to run", "active", "systemctl is-active pn-module-racked")
	s.becomes(t, instance, "running")
	const look = "cat /etc/racked/name; systemctl show -P SubState -P UnitFileState pn-module-racked-once; systemctl show -P MainPID pn-module-racked"
	before := s.inside(t, look)
	if !strings.HasPrefix(before, "adaexited\nenabled\n") {
		t.Errorf("the machine has %s", before)
	}
	s.inside(t, "systemctl restart powernode-agent")
	ok(t, rig.Await(t.Context(), "the other agent", time.Minute, func(ctx context.Context) (string, error) {
		out, err := s.Approved(ctx, "system_refresh_instance_modules", rig.Object{"instance_id": instance, "force_resync": true})
		if err != nil {
			return "", err
		}
		got, err := s.Call(ctx, "system_get_task", rig.Object{"id": rig.Text(out, "task_id"), "wait_seconds": 20})
		if status := rig.Text(got, "task", "status"); err == nil && status != "complete" {
			return "the task is " + status, nil
		}
		return "", err
	}))
	if after := s.inside(t, look); after != before { // the second run of racked-once would have failed
		t.Errorf("before another agent %s, after it %s", before, after)
	}
}

// refusesPackage has a node carry a module whose package nobody has: the module is refused, with apt's own word.
func (s *site) refusesPackage(t *testing.T, node, instance string) {
	t.Helper()
	module := s.released(t, "unpackaged", rig.Object{"packages": []string{"no-such-package-of-ours"}, "files": []rig.Object{{"path": "/etc/unpackaged/x", "content": "x"}}})
	assigned := s.must(t, "system_assign_module_to_node", rig.Object{"node_id": node, "module_id": module})
	ok(t, rig.Await(t.Context(), "the module to be refused", 2*time.Minute, func(ctx context.Context) (string, error) {
		out, err := s.Call(ctx, "system_get_instance", rig.Object{"instance_id": instance})
		m := rig.Find(rig.List(out, "instance", "subsystems"), "name", "modules")
		text := rig.Text(m, "message")
		if strings.Contains(text, "module unpackaged: install the packages no-such-package-of-ours: ") && strings.Contains(text, "Unable to locate package") {
			return "", nil
		}
		return fmt.Sprint(m), err
	}))
	if out := s.inside(t, "ls -d /etc/unpackaged 2>&1; systemctl is-active pn-module-racked"); !strings.HasSuffix(out, "active") || !strings.Contains(out, "cannot access") {
		t.Errorf("the machine has %s", out)
	}
	_, err := s.Approved(t.Context(), "system_update_module_assignment", rig.Object{"assignment_id": rig.Text(assigned, "assignment", "id"), "enabled": false})
	ok(t, err)
	s.becomes(t, instance, "running")
}

// released makes a module with a current version and answers its id.
func (s *site) released(t *testing.T, name string, manifest rig.Object) string {
	t.Helper()
	module := rig.Text(s.must(t, "system_create_module", rig.Object{"name": name}), "module", "id")
	_, err := s.Approved(t.Context(), "system_create_module_version",
		rig.Object{"module_id": module, "version": "1", "make_current": true, "manifest": manifest})
	ok(t, err)
	return module
}

// awaitInside runs a shell line in the machine until it prints something.
func (s *site) awaitInside(t *testing.T, what, want, line string) {
	t.Helper()
	ok(t, rig.Await(t.Context(), what, 30*time.Second, func(ctx context.Context) (string, error) {
		out, err := s.machine.run(ctx, line+" || true\n", "bash", "-s")
		if got := strings.TrimSpace(out); err == nil && got != want {
			return "it is " + got, nil
		}
		return "", errors.Join(err, ctx.Err())
	}))
}
