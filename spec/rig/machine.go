package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Machine is an instance of the provider local that is a peer of one network.
type Machine struct {
	*Installation
	Name, Node, Instance, Network, Peer string
}

// NewMachine makes a network, a node and its machine, attaches it and waits until it has converged.
func NewMachine(ctx context.Context, i *Installation, template, name string) (*Machine, error) {
	network, err := i.Call(ctx, "system_sdwan_create_network", Object{"name": "net-of-" + name})
	if err != nil {
		return nil, err
	}
	return AddMachine(ctx, i, template, name, Text(network, "network", "id"))
}

// AddMachine makes a node and its machine, attaches it to a network and waits until it has converged.
func AddMachine(ctx context.Context, i *Installation, template, name, network string) (*Machine, error) {
	regions, err := i.Call(ctx, "system_list_regions", Object{})
	if err != nil {
		return nil, err
	}
	sizes, err := i.Call(ctx, "system_list_instance_types", Object{})
	if err != nil {
		return nil, err
	}
	node, err := i.Call(ctx, "system_create_node", Object{"name": name, "template_id": template})
	if err != nil {
		return nil, err
	}
	m := &Machine{Installation: i, Name: name, Node: Text(node, "node", "id"), Network: network}
	out, err := i.Call(ctx, "system_provision_instance", Object{"node_id": m.Node, "provider_region_id": Text(regions, "regions", 0, "id"),
		"provider_instance_type_id": Text(sizes, "instance_types", 0, "id")})
	if err != nil {
		return nil, err
	}
	m.Instance = Text(out, "instance", "id")
	peer, err := i.Call(ctx, "system_sdwan_attach_peer", Object{"network_id": network, "node_instance_id": m.Instance})
	if err != nil {
		return nil, err
	}
	m.Peer = Text(peer, "peer", "id")
	return m, m.Converged(ctx)
}

// Converged waits until the agent has applied what its machine is to be.
func (m *Machine) Converged(ctx context.Context) error {
	return Await(ctx, "instance "+m.Name+" to converge", time.Minute, func(ctx context.Context) (string, error) {
		out, err := m.Call(ctx, "system_get_instance", Object{"instance_id": m.Instance})
		if err != nil || At(out, "instance", "converged") == true {
			return "", err
		}
		return fmt.Sprintf("status %s, desired %v, subsystems %v", Text(out, "instance", "status"), At(out, "instance", "desired_revision"), At(out, "instance", "subsystems")), nil
	})
}

// Changes makes n changes that put an address on the machine, and answers how long each took from its commit (the time
// that the row carries) to a netlink subscription inside the machine that is not the agent's.
func (m *Machine) Changes(ctx context.Context, n int) ([]time.Duration, error) {
	watch, err := m.watchAddresses(ctx)
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for k := range n {
		out, err := m.Call(ctx, "system_sdwan_create_virtual_ip", Object{"network_id": m.Network, "name": fmt.Sprintf("change-%d", k), "cidr": "auto",
			"holder_peer_ids": []string{m.Peer}})
		if err != nil {
			return took, errors.Join(err, watch.close())
		}
		committed, err := time.Parse(time.RFC3339, Text(out, "virtual_ip", "created_at"))
		if err != nil {
			return took, errors.Join(err, watch.close())
		}
		seen, err := watch.await(ctx, strings.TrimSuffix(Text(out, "virtual_ip", "cidr"), "/128"))
		if err != nil {
			return took, errors.Join(err, watch.close())
		}
		took = append(took, seen.Sub(committed))
	}
	return took, watch.close()
}

// watcher reads `ip monitor` inside a machine; each line carries the time at which it was seen.
type watcher struct {
	cmd   *exec.Cmd
	lines chan sighting
}

type sighting struct {
	line string
	at   time.Time
}

func (m *Machine) watchAddresses(ctx context.Context) (*watcher, error) {
	w := &watcher{cmd: m.Command(ctx, "local", "exec", m.Name, "--", "ip", "-6", "-o", "monitor", "address"), lines: make(chan sighting, 1024)}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("watch the addresses of %s: %w", m.Name, err)
	}
	go w.read(stdout)
	// The subscription stands when it shows a change of our own.
	const probe = "fd00:dead:beef::1"
	return w, Await(ctx, "the subscription on "+m.Name, 20*time.Second, func(ctx context.Context) (string, error) {
		_, err := m.Exec(ctx, m.Name, "sh", "-c", "ip -6 addr add "+probe+"/128 dev lo; ip -6 addr del "+probe+"/128 dev lo")
		if err != nil {
			return "", err
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := w.await(short, probe); err != nil {
			return err.Error(), nil // not seen yet is what is awaited
		}
		return "", nil
	})
}

func (w *watcher) read(stdout io.Reader) {
	defer close(w.lines)
	scanner := bufio.NewScanner(stdout)
	for scanner.Scan() {
		w.lines <- sighting{scanner.Text(), time.Now()}
	}
}

// await waits for a line that tells of an address that came.
func (w *watcher) await(ctx context.Context, address string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		select {
		case s, open := <-w.lines:
			if !open {
				return time.Time{}, errors.New("the subscription ended")
			}
			if strings.Contains(s.line, address+"/") && !strings.HasPrefix(s.line, "Deleted") {
				return s.at, nil
			}
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%s was not seen on the machine: %w", address, ctx.Err())
		}
	}
}

func (w *watcher) close() error {
	if err := w.cmd.Process.Kill(); err != nil {
		return err
	}
	for range w.lines { // drained until the reader has ended
	}
	_ = w.cmd.Wait() // it was killed: its exit says nothing
	return nil
}
