package modules

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"powernode/spec/rig"
)

// greeter is a program that says what it was given.
const greeter = `#!/bin/sh
echo "$GREETING $1 $(cat /etc/greeter/name) $(cat /etc/greeter/config.json)" >>/run/greeter
exec /bin/sleep 1000
`

func greeterVersion(t *testing.T, name string) rig.Object {
	return rig.Object{"artifacts": addArtifact(t, "greeter", greeter), "manifest": rig.Object{
		"files": []rig.Object{{"path": "/etc/greeter/name", "mode": "0640", "content": name + "\n"}, {"path": "/srv/greeter/same", "content": "same"}},
		"services": []rig.Object{{"name": "greeter", "exec": "/opt/greeter/bin/greeter", "args": []string{"$HOME; %h"}, "env": rig.Object{"GREETING": "hello \"you\""}},
			{"name": "greeter-note", "exec": "/bin/touch", "args": []string{"/run/greeter-note"}, "restart": "never"}},
	}}
}

func TestModulesContentReachesTheMachineAndGoesAgain(t *testing.T) {
	module := newModule(t, "greeter")
	release(t, module, "1", greeterVersion(t, "ada"))
	began := time.Now()
	unassign := assign(t, module, rig.Object{"port": 80})
	await(t, "the service's word", "grep", "-qxF", `hello "you" $HOME; %h ada {"port":80}`, "/run/greeter")
	t.Logf("from the call to the running service: %v", time.Since(began))
	await(t, "the service that ends", "test", "-e", "/run/greeter-note")
	is := awaitDigest(t, "the module to be reported", module, func(d string) bool { return d != "" })
	if got := onMachine(t, "stat", "-c", "%n %a %U", "/etc/greeter/name", "/etc/greeter/config.json", "/opt/greeter/bin/greeter", "/srv/greeter/same"); got !=
		"/etc/greeter/name 640 root\n/etc/greeter/config.json 600 root\n/opt/greeter/bin/greeter 755 root\n/srv/greeter/same 644 root\n" {
		t.Errorf("files are\n%s", got)
	}

	t.Run("another agent changes nothing", func(t *testing.T) {
		before := footprint(t)
		if err := shared.KillAgent(t.Context(), shared.Name); err != nil {
			t.Fatal(err)
		}
		refresh(t, false)
		if after := footprint(t); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})

	t.Run("a hand's change is reported and put right", func(t *testing.T) {
		onMachine(t, "sh", "-c", "echo eve >/etc/greeter/name")
		refresh(t, false)
		// It puts the change right by itself soon: it does nothing while the platform is asked.
		resume := stopAgent(t)
		awaitDigest(t, "the change to be reported", module, func(d string) bool { return d != "" && d != is })
		drifted(t, module, true)
		resume()
		refresh(t, true)
		if got := onMachine(t, "cat", "/etc/greeter/name"); got != "ada\n" {
			t.Errorf("the file is %q", got)
		}
		awaitDigest(t, "the module to be as it should", module, func(d string) bool { return d == is })
		drifted(t, module, false)
	})

	t.Run("a new version changes only what changed", func(t *testing.T) {
		same := onMachine(t, "stat", "-c", "%i %Z", "/srv/greeter/same", "/opt/greeter/bin/greeter")
		release(t, module, "2", greeterVersion(t, "grace"))
		await(t, "the service's new word", "grep", "-qF", "grace", "/run/greeter")
		if now := onMachine(t, "stat", "-c", "%i %Z", "/srv/greeter/same", "/opt/greeter/bin/greeter"); now != same {
			t.Errorf("unchanged files were %s, are %s", same, now)
		}
	})

	unassign()
	await(t, "everything to be gone", "sh", "-c",
		"! pgrep -f '^/bin/sh /opt/greeter' && ! pgrep -x sleep && ! ls -d /etc/greeter /opt/greeter /srv/greeter 2>/dev/null")
	awaitDigest(t, "the module to be reported no more", module, func(d string) bool { return d == "" })
	if err := shared.Converged(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestModuleThatCannotBeCarriedHoldsUpNoOther(t *testing.T) {
	needs := newModule(t, "needs-packages")
	release(t, needs, "1", rig.Object{"manifest": rig.Object{"packages": []string{"tree"}, "files": []rig.Object{{"path": "/etc/needs-packages/x", "content": "x"}}}})
	plain := newModule(t, "plain-files")
	release(t, plain, "1", rig.Object{"manifest": rig.Object{"files": []rig.Object{{"path": "/etc/plain-files/x", "content": "x"}}}})
	offNeeds, offPlain := assign(t, needs, nil), assign(t, plain, nil)
	awaitMessage(t, "error", "module needs-packages: it needs packages, and this machine has no package manager that the agent knows")
	await(t, "the other module's file", "test", "-e", "/etc/plain-files/x")
	awaitDigest(t, "the other module to be reported", plain, func(d string) bool { return d != "" })
	if says(t, "test", "-e", "/etc/needs-packages") {
		t.Error("a refused module has files")
	}
	offNeeds()
	offPlain()
	await(t, "both to be gone", "sh", "-c", "! test -e /etc/plain-files && ! test -e /etc/needs-packages")
	awaitMessage(t, "ok", "")
}

func TestLinkInAModulesFolderIsNotFollowed(t *testing.T) {
	onMachine(t, "sh", "-c", "mkdir /root/bait && ln -s /root/bait /etc/linked")
	t.Cleanup(func() {
		if _, err := shared.Exec(context.WithoutCancel(t.Context()), shared.Name, "rm", "-rf", "/root/bait", "/etc/linked"); err != nil {
			t.Error(err)
		}
	})
	module := newModule(t, "linked")
	release(t, module, "1", rig.Object{"manifest": rig.Object{"files": []rig.Object{{"path": "/etc/linked/x", "content": "x"}}}})
	off := assign(t, module, nil)
	awaitMessage(t, "error", "module linked: /etc/linked/x")
	if got := onMachine(t, "ls", "-A", "/root/bait"); got != "" {
		t.Errorf("behind the link there is %s", got)
	}
	onMachine(t, "rm", "/etc/linked")
	await(t, "the file once the link is gone", "test", "-f", "/etc/linked/x")
	off()
	await(t, "the file to be gone", "sh", "-c", "! test -e /etc/linked")
}

func TestWhatMayNotBePlacedIsRefusedAtTheCall(t *testing.T) {
	module := newModule(t, "ssh")
	refusedWith(t, "invalid_arguments", "file path refused: it is below /etc/ssh", "system_create_module_version", rig.Object{"module_id": module, "version": "1",
		"manifest": rig.Object{"files": []rig.Object{{"path": "/etc/ssh/sshd_config", "content": "x"}}}})
	refusedWith(t, "invalid_arguments", "service x must be an argument vector", "system_create_module_version", rig.Object{"module_id": module, "version": "1",
		"manifest": rig.Object{"services": []rig.Object{{"name": "x", "exec": "sh -c true"}}}})
}

// refresh has the agent look at its modules and waits until it has.
func refresh(t *testing.T, force bool) {
	t.Helper()
	out := must(t, "system_refresh_instance_modules", rig.Object{"instance_id": shared.Instance, "force_resync": force})
	id := rig.Text(out, "task_id")
	got := must(t, "system_get_task", rig.Object{"id": id, "wait_seconds": 30})
	if status := rig.Text(got, "task", "status"); status != "complete" {
		t.Fatalf("the task is %s: %v", status, got)
	}
}

// stopAgent holds the machine's agent up until the returned function is called, or the test ends.
func stopAgent(t *testing.T) (resume func()) {
	t.Helper()
	if err := shared.Signal(t.Context(), shared.Name, "STOP"); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() {
		if err := shared.Signal(context.WithoutCancel(t.Context()), shared.Name, "CONT"); err != nil {
			t.Errorf("resume the agent: %v", err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// footprint is all that a module has on the machine, with what every write or start changes.
func footprint(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(onMachine(t, "sh", "-c",
		"find /etc/greeter /opt/greeter /srv/greeter -exec stat -c '%n %i %Z' {} + | sort; pgrep -f '^/bin/sleep 1000'; cat /run/greeter"))
}
