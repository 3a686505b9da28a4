package balancer

import (
	"bufio"
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// named starts a server that answers with its name and keeps connections open.
func named(t *testing.T, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name + "\n"))
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l
}

func ask(t *testing.T, b *Balancer) (string, net.Conn) {
	t.Helper()
	c, err := net.DialTimeout("tcp", b.listener.Addr().String(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line[:len(line)-1], c
}

func TestBalancer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	file := filepath.Join(t.TempDir(), "lb.json")
	a, b, origin := named(t, "a"), named(t, "b"), named(t, "origin")
	lb, err := Start(ctx, "127.0.0.1:0", origin.Addr().String(), file)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ask(t, lb); got != "origin" {
		t.Errorf("before anything is known: %s", got)
	}
	if err := lb.Update([]string{a.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	got, old := ask(t, lb)
	if got != "a" {
		t.Errorf("one server: %s", got)
	}

	if err := lb.Update([]string{b.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Read(make([]byte, 1)); err == nil {
		t.Error("the connection to a server that is gone lives on")
	}
	if err := lb.Update(nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := ask(t, lb); got != "b" {
		t.Errorf("an empty list was believed: %s", got)
	}

	again, err := Start(ctx, "127.0.0.1:0", origin.Addr().String(), file)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ask(t, again); got != "b" {
		t.Errorf("after a restart: %s", got)
	}
	b.Close()
	if got, _ := ask(t, again); got != "origin" {
		t.Errorf("with every server down: %s", got)
	}
}
