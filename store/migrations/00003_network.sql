-- +goose Up
CREATE TABLE networks (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), name TEXT NOT NULL, slug TEXT NOT NULL,
  description TEXT NOT NULL, status TEXT NOT NULL, cidr_64 TEXT NOT NULL UNIQUE, mtu INTEGER NOT NULL,
  topology_strategy TEXT NOT NULL, firewall_default_policy TEXT NOT NULL, routing_protocol TEXT NOT NULL,
  pod_subnet_prefix TEXT, tags TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (account_id, name), UNIQUE (account_id, slug)) STRICT;

-- One table of what is taken, so that nothing overlaps: network /64s, pod and service CIDRs, LAN subnets.
CREATE TABLE address_ranges (
  account_id TEXT NOT NULL REFERENCES accounts (id), prefix TEXT NOT NULL, kind TEXT NOT NULL, owner_id TEXT NOT NULL,
  owner_name TEXT NOT NULL, released_at TEXT, PRIMARY KEY (account_id, prefix, kind, owner_id)) STRICT;

-- Single addresses of networks; a released one rests before it is used again.
CREATE TABLE addresses (
  account_id TEXT NOT NULL REFERENCES accounts (id), network_id TEXT NOT NULL, address TEXT NOT NULL, kind TEXT NOT NULL,
  owner_id TEXT NOT NULL, released_at TEXT, PRIMARY KEY (account_id, address)) STRICT;
CREATE INDEX addresses_by_network ON addresses (network_id, kind);

CREATE TABLE peers (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), network_id TEXT NOT NULL REFERENCES networks (id),
  instance_id TEXT NOT NULL REFERENCES instances (id), address TEXT NOT NULL, address_v4 TEXT, publicly_reachable INTEGER NOT NULL,
  endpoint_host TEXT NOT NULL, endpoint_host_v6 TEXT NOT NULL, endpoint_host_v4 TEXT NOT NULL, endpoint_port INTEGER NOT NULL,
  listen_port INTEGER NOT NULL, short_id INTEGER NOT NULL, public_key TEXT NOT NULL, next_public_key TEXT NOT NULL,
  tags TEXT NOT NULL, lan_subnets TEXT NOT NULL, pod_cidrs TEXT NOT NULL, rr_client INTEGER NOT NULL, created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (network_id, instance_id)) STRICT;
CREATE INDEX peers_by_instance ON peers (instance_id);

-- Interface numbers of a host: kept for the membership's life, not reused at once.
CREATE TABLE short_ids (
  instance_id TEXT NOT NULL, short_id INTEGER NOT NULL, peer_id TEXT NOT NULL, released_at TEXT,
  PRIMARY KEY (instance_id, short_id)) STRICT;

-- Endpoints that agents report; for peers of the same provider region.
CREATE TABLE peer_endpoints (
  peer_id TEXT NOT NULL REFERENCES peers (id) ON DELETE CASCADE, address TEXT NOT NULL, port INTEGER NOT NULL,
  source TEXT NOT NULL, PRIMARY KEY (peer_id, address, port)) STRICT;

-- Telemetry: overwritten by every report.
CREATE TABLE tunnels (
  instance_id TEXT NOT NULL, network_id TEXT NOT NULL, remote_peer_id TEXT NOT NULL, last_handshake_at TEXT, rx_bytes INTEGER NOT NULL,
  tx_bytes INTEGER NOT NULL, endpoint TEXT NOT NULL, sampled_at TEXT NOT NULL,
  PRIMARY KEY (instance_id, network_id, remote_peer_id)) STRICT;
CREATE INDEX tunnels_by_remote ON tunnels (network_id, remote_peer_id);

CREATE TABLE firewall_rules (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), network_id TEXT NOT NULL REFERENCES networks (id),
  name TEXT NOT NULL, priority INTEGER NOT NULL, action TEXT NOT NULL, direction TEXT NOT NULL, protocol TEXT NOT NULL,
  src_selector TEXT, dst_selector TEXT, port_from INTEGER, port_to INTEGER, enabled INTEGER NOT NULL, force INTEGER NOT NULL,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (network_id, name)) STRICT;

CREATE TABLE access_grants (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), network_id TEXT NOT NULL REFERENCES networks (id),
  user_id TEXT NOT NULL REFERENCES users (id), status TEXT NOT NULL, tags TEXT NOT NULL, granted_at TEXT NOT NULL,
  revoked_at TEXT, revision INTEGER NOT NULL, UNIQUE (network_id, user_id)) STRICT;

CREATE TABLE user_devices (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), grant_id TEXT NOT NULL REFERENCES access_grants (id),
  network_id TEXT NOT NULL REFERENCES networks (id), label TEXT NOT NULL, public_key TEXT NOT NULL, address TEXT NOT NULL,
  token_hash TEXT UNIQUE, token_expires_at TEXT, downloadable INTEGER NOT NULL, last_downloaded_at TEXT,
  config_hash TEXT NOT NULL DEFAULT '', stale_since TEXT, revoked_at TEXT, created_at TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX user_devices_label ON user_devices (grant_id, label) WHERE revoked_at IS NULL;
CREATE INDEX user_devices_by_network ON user_devices (network_id);

CREATE TABLE virtual_ips (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), network_id TEXT NOT NULL REFERENCES networks (id),
  name TEXT NOT NULL, address TEXT NOT NULL, anycast INTEGER NOT NULL, state TEXT NOT NULL, epoch INTEGER NOT NULL,
  holder_peer_ids TEXT NOT NULL, failover_holder_peer_ids TEXT NOT NULL, advertised_med INTEGER NOT NULL,
  advertised_local_pref INTEGER NOT NULL, tags TEXT NOT NULL, description TEXT NOT NULL, cluster_id TEXT,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, revision INTEGER NOT NULL,
  UNIQUE (network_id, name), UNIQUE (account_id, address)) STRICT;

CREATE TABLE virtual_ip_assignments (
  id TEXT PRIMARY KEY, virtual_ip_id TEXT NOT NULL REFERENCES virtual_ips (id) ON DELETE CASCADE, peer_id TEXT NOT NULL,
  assumed_at TEXT NOT NULL, released_at TEXT, reason TEXT NOT NULL, triggered_by_user_id TEXT) STRICT;
CREATE INDEX virtual_ip_assignments_by_vip ON virtual_ip_assignments (virtual_ip_id, assumed_at);

-- What agents are asked to measure, and what they answered.
CREATE TABLE probes (
  id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id), run_id TEXT NOT NULL, instance_id TEXT NOT NULL,
  from_peer_id TEXT NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL, protocol TEXT NOT NULL, port INTEGER NOT NULL, deadline_ms INTEGER NOT NULL,
  result TEXT, rtt_ms REAL, measured_at TEXT, created_at TEXT NOT NULL) STRICT;
CREATE INDEX probes_by_instance ON probes (instance_id);
CREATE INDEX probes_by_run ON probes (run_id);
