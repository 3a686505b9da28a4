// Package wireguard makes the machine's WireGuard interfaces what a document says: keys, devices, peers, addresses,
// routes and the forwarding that they need. A device is the kernel's where the kernel has WireGuard, otherwise
// wireguard-go in a process of its own (RunDevice), found again by its control socket; both are configured by wgctrl.
//
// It is not the topology (package sdwan decides who is a peer of whom and owns which address), not the firewall, and
// not the virtual IPs: an address of a network's VIP range on an interface is package vip's and left alone here.
//
// Invariants: desired == actual writes nothing; an interface is never deleted and made again while its device lives;
// a peer with a live handshake keeps the endpoint that it was learned at; what is added is there before what it
// replaces goes; only devices recorded in the state file and routes with our protocol number are reaped; a network
// that can't be understood is left as it is. The agent's runner calls Reconcile and Observe.
package wireguard
