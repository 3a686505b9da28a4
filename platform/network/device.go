package network

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"powernode/platform/signal"
	"powernode/schema"
	"powernode/sdwan"
	"powernode/store"
)

const (
	// bootstrapPath is where devices redeem their token; nodeapi serves it.
	bootstrapPath   = "/api/v1/system/sdwan/bootstrap/"
	deviceTokenLife = 15 * time.Minute
	tokenBytes      = 32
	staleKind       = "system.sdwan_user_device_config_stale"
)

// Refusals of a device's bootstrap (contract 15.7).
var (
	ErrTokenInvalid = &DeviceError{401, "the token is malformed or has expired: ask for a new device"}
	ErrTokenUnknown = &DeviceError{404, "no device has this token"}
	ErrKeyDiffers   = &DeviceError{409, "public_key differs from the device's: a person's devices of one label have one key"}
	ErrKeyInUse     = &DeviceError{409, "public_key is already in use in one of the device's networks"}
	ErrTokenUsed    = &DeviceError{410, "the token was used, the device revoked, or its grant is not active"}
	ErrKeyMissing   = &DeviceError{422, "public_key is needed: 44 characters of base64"}
)

// DeviceError is a refusal of a device's bootstrap, with its status in the agents' API.
type DeviceError struct {
	HTTPStatus int
	Text       string
}

func (e *DeviceError) Error() string { return e.Text }

// DeviceInput is a person's device to make.
type DeviceInput struct {
	GrantID   store.AccessGrantID
	Label     string
	PublicKey string // empty: the device makes it
}

// CheckDevice refuses what IssueDevice could not do.
func (s *Service) CheckDevice(ctx context.Context, v *store.View, acct store.AccountID, in DeviceInput) error {
	if err := checkName("/label", in.Label, maxLabel); err != nil {
		return err
	}
	if in.PublicKey != "" && !validKey(in.PublicKey) {
		return schema.InvalidArgument("/public_key", in.PublicKey, "public_key must be 44 characters of base64, 32 bytes (got %q)", in.PublicKey)
	}
	g, err := store.AccessGrantByID(ctx, v, acct, in.GrantID)
	if err != nil {
		return orNotFound(err, "access grant not found")
	}
	if g.Status != GrantActive {
		return schema.Errorf(schema.PreconditionFailed, "access grant is %s", g.Status)
	}
	if s.PlatformURL == nil || s.CAFingerprint == nil || s.PlatformURL() == "" {
		return schema.Errorf(schema.Unavailable, "the agents' API has no address yet")
	}
	siblings, err := store.UserDevicesByLabel(ctx, v, acct, g.UserID, in.Label)
	if err != nil {
		return err
	}
	for _, d := range siblings {
		if d.GrantID == g.ID {
			return schema.Errorf(schema.Conflict, "device label %q is already in use in this grant", in.Label).WithDetail("user_device_id", string(d.ID))
		}
	}
	return s.checkKeyFree(ctx, v, g.AccountID, g.NetworkID, orDefault(in.PublicKey, lentKey(siblings)), "")
}

// checkKeyFree refuses a key that a network has already: WireGuard would see one peer.
func (s *Service) checkKeyFree(ctx context.Context, v *store.View, acct store.AccountID, network store.NetworkID, key, self string) error {
	owner, err := keyOwner(ctx, v, acct, network, key, self)
	if err != nil || owner == "" {
		return err
	}
	return schema.Errorf(schema.Conflict, "public key is already in use in this network").WithDetail("owner_id", owner)
}

// keyOwner is who else of a network has a key, or "".
func keyOwner(ctx context.Context, v *store.View, acct store.AccountID, network store.NetworkID, key, self string) (string, error) {
	if key == "" {
		return "", nil
	}
	peers, err := store.PeersByNetwork(ctx, v, acct, network)
	if err != nil {
		return "", err
	}
	for _, p := range peers {
		if string(p.ID) != self && (p.PublicKey == key || p.NextPublicKey == key) {
			return string(p.ID), nil
		}
	}
	devices, err := store.UserDevicesByNetwork(ctx, v, acct, network)
	if err != nil {
		return "", err
	}
	for _, d := range devices {
		if string(d.ID) != self && d.PublicKey == key {
			return string(d.ID), nil
		}
	}
	return "", nil
}

func validKey(key string) bool {
	raw, err := base64.StdEncoding.DecodeString(key)
	return err == nil && len(key) == 44 && len(raw) == 32
}

// lentKey is the key that a person's devices of one label have already.
func lentKey(siblings []store.UserDevice) string {
	for _, d := range siblings {
		if d.PublicKey != "" {
			return d.PublicKey
		}
	}
	return ""
}

// Issued is a new device and the URL with which it gets its file, once.
type Issued struct {
	Device       store.UserDevice
	BootstrapURL string
	ExpiresAt    store.Time
	Warnings     []Warning
}

// IssueDevice makes a device of a grant. A device of the same person and label in another network lends its key.
func (s *Service) IssueDevice(ctx context.Context, tx *store.Tx, acct store.AccountID, in DeviceInput) (Issued, error) {
	if err := s.CheckDevice(ctx, &tx.View, acct, in); err != nil {
		return Issued{}, err
	}
	g, err := store.AccessGrantByID(ctx, &tx.View, acct, in.GrantID)
	if err != nil {
		return Issued{}, err
	}
	n, err := s.Find(ctx, &tx.View, acct, g.NetworkID)
	if err != nil {
		return Issued{}, err
	}
	siblings, err := store.UserDevicesByLabel(ctx, &tx.View, acct, g.UserID, in.Label)
	if err != nil {
		return Issued{}, err
	}
	random := make([]byte, tokenBytes)
	if err := tx.Random(random); err != nil {
		return Issued{}, fmt.Errorf("make a device's token: %w", err)
	}
	token := store.Secret(hex.EncodeToString(random))
	expires := store.At(tx.Now().Add(deviceTokenLife))
	d := store.UserDevice{ID: store.UserDeviceID(tx.NewID()), AccountID: acct, GrantID: g.ID, NetworkID: n.ID, Label: in.Label,
		PublicKey: orDefault(in.PublicKey, lentKey(siblings)), TokenHash: token.Hash(), TokenExpiresAt: &expires, Downloadable: true}
	if d.Address.Addr, err = takeAddress(ctx, tx, n, addressDevice, string(d.ID), netip.Addr{}); err != nil {
		return Issued{}, err
	}
	if err := store.InsertUserDevice(ctx, tx, d); err != nil {
		return Issued{}, fmt.Errorf("make device %s: %w", d.Label, err)
	}
	_, err = tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Sdwan::UserDevice", ResourceID: string(d.ID),
		New: store.Object{"access_grant_id": string(g.ID), "network_id": string(n.ID), "label": d.Label, "assigned_address": d.Address.String()}})
	if err != nil {
		return Issued{}, err
	}
	tx.TouchNetwork(n.ID)
	url := strings.TrimSuffix(s.PlatformURL(), "/") + bootstrapPath + token.Reveal() + "#" + s.CAFingerprint()
	out := Issued{Device: d, BootstrapURL: url, ExpiresAt: expires}
	out.Warnings, err = s.gatewayWarning(ctx, &tx.View, n)
	return out, err
}

func (s *Service) gatewayWarning(ctx context.Context, v *store.View, n store.Network) ([]Warning, error) {
	in, err := s.Intent(ctx, v, n.AccountID, n.ID)
	if err != nil {
		return nil, err
	}
	if _, ok := sdwan.GatewayOf(in); ok {
		return nil, nil
	}
	return []Warning{{"no_gateway", fmt.Sprintf("network %s has neither a hub nor a peer with an endpoint: its [Peer] is missing from the file", n.Name)}}, nil
}

// byToken finds the device of a token, refused in the words of the bootstrap.
func (s *Service) byToken(ctx context.Context, v *store.View, token string) (store.UserDevice, store.AccessGrant, error) {
	if raw, err := hex.DecodeString(token); err != nil || len(raw) != tokenBytes {
		return store.UserDevice{}, store.AccessGrant{}, ErrTokenInvalid
	}
	d, err := store.UserDeviceByTokenHash(ctx, v, store.Secret(token).Hash())
	if none, err := absent(err); err != nil || none {
		if none {
			err = ErrTokenUnknown
		}
		return d, store.AccessGrant{}, err
	}
	g, err := store.AccessGrantByID(ctx, v, d.AccountID, d.GrantID)
	if err != nil {
		return d, g, err
	}
	switch {
	case !d.Downloadable, d.RevokedAt != nil, g.Status != GrantActive:
		return d, g, ErrTokenUsed
	case d.TokenExpiresAt == nil || !v.Now().Before(d.TokenExpiresAt.Time):
		return d, g, ErrTokenInvalid
	}
	return d, g, nil
}

// DeviceInfo says what to do with a token, and uses nothing up.
func (s *Service) DeviceInfo(ctx context.Context, v *store.View, token string) (string, error) {
	d, _, err := s.byToken(ctx, v, token)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Device %q is ready to join, until %s. On the device run: powernode-agent device join URL, with this whole URL, "+
		"its fragment too. It makes the key and writes the configuration.", d.Label, d.TokenExpiresAt), nil
}

// RedeemDevice uses a token up: the device gets its key, and the file of all networks in which its person has a device
// of that label. Refusals are the errors named above.
func (s *Service) RedeemDevice(ctx context.Context, tx *store.Tx, token, publicKey string) (config, filename string, err error) {
	d, g, err := s.byToken(ctx, &tx.View, token)
	if err != nil {
		return "", "", err
	}
	siblings, err := store.UserDevicesByLabel(ctx, &tx.View, d.AccountID, g.UserID, d.Label)
	if err != nil {
		return "", "", err
	}
	issued := orDefault(d.PublicKey, lentKey(siblings))
	switch {
	case publicKey != "" && !validKey(publicKey), publicKey == "" && issued == "":
		return "", "", ErrKeyMissing
	case publicKey != "" && issued != "" && publicKey != issued:
		return "", "", ErrKeyDiffers
	}
	key := orDefault(issued, publicKey)
	for i := range siblings {
		if siblings[i].ID == d.ID {
			siblings[i].Downloadable = false
		} else if siblings[i].PublicKey != "" {
			continue
		}
		if err := s.giveKey(ctx, tx, siblings[i], key); err != nil {
			return "", "", err
		}
	}
	file, err := s.deviceFile(ctx, &tx.View, d.AccountID, g.UserID, d.Label)
	if err != nil {
		return "", "", err
	}
	return file.Config, file.Filename, s.HandOut(ctx, tx, file)
}

// giveKey writes a device's key, if it is new to it.
func (s *Service) giveKey(ctx context.Context, tx *store.Tx, d store.UserDevice, key string) error {
	was := store.Object{"public_key": d.PublicKey}
	if d.PublicKey != key {
		owner, err := keyOwner(ctx, &tx.View, d.AccountID, d.NetworkID, key, string(d.ID))
		if err != nil {
			return err
		}
		if owner != "" {
			return ErrKeyInUse
		}
		tx.TouchNetwork(d.NetworkID)
	}
	d.PublicKey = key
	if err := store.UpdateUserDevice(ctx, tx, d); err != nil {
		return fmt.Errorf("change device %s: %w", d.Label, err)
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: d.AccountID, Action: "updated", ResourceType: "Sdwan::UserDevice", ResourceID: string(d.ID),
		Old: was, New: store.Object{"public_key": key, "downloadable": d.Downloadable}})
	return err
}

// DeviceFile is one file for all networks in which a person has a device of one label.
type DeviceFile struct {
	Config     string
	Filename   string
	Devices    []store.UserDevice
	Entries    []sdwan.DeviceEntry
	StaleSince *store.Time
}

// FindDeviceFile is DeviceFile for a person by id or e-mail address. Every device of the label has the same key.
func (s *Service) FindDeviceFile(ctx context.Context, v *store.View, acct store.AccountID, user, label string) (DeviceFile, error) {
	u, err := findUser(ctx, v, acct, user)
	if err != nil {
		return DeviceFile{}, err
	}
	return s.deviceFile(ctx, v, acct, u.ID, label)
}

func (s *Service) deviceFile(ctx context.Context, v *store.View, acct store.AccountID, user store.UserID, label string) (DeviceFile, error) {
	all, err := store.UserDevicesByLabel(ctx, v, acct, user, label)
	if err != nil {
		return DeviceFile{}, err
	}
	f := DeviceFile{Filename: filename(label)}
	var networks []sdwan.DeviceNetwork
	for _, d := range all {
		g, err := store.AccessGrantByID(ctx, v, acct, d.GrantID)
		if err != nil {
			return f, err
		}
		if g.Status != GrantActive {
			continue
		}
		in, err := s.Intent(ctx, v, acct, d.NetworkID)
		if err != nil {
			return f, err
		}
		f.Devices = append(f.Devices, d)
		networks = append(networks, sdwan.DeviceNetwork{Intent: in, DeviceID: string(d.ID)})
		if d.StaleSince != nil && (f.StaleSince == nil || d.StaleSince.Before(f.StaleSince.Time)) {
			f.StaleSince = d.StaleSince
		}
	}
	if len(f.Devices) == 0 {
		return f, schema.Errorf(schema.NotFound, "no device of label %q", label)
	}
	for _, d := range f.Devices {
		if d.PublicKey == "" {
			return f, schema.Errorf(schema.PreconditionFailed, "the key of device %q is not yet made: redeem its bootstrap URL", label).WithDetail("user_device_id", string(d.ID))
		}
		if d.PublicKey != f.Devices[0].PublicKey {
			return f, schema.Errorf(schema.Conflict, "the devices of label %q have different keys", label)
		}
	}
	if f.Entries, err = sdwan.DeviceEntries(networks); err != nil {
		return f, fmt.Errorf("compile the file of device %s: %w", label, err)
	}
	f.Config = sdwan.DeviceConfig(label, f.Entries)
	return f, nil
}

var notInFilename = regexp.MustCompile(`[^a-z0-9_-]+`)

// filename is a label as the name of a file and, without its end, of an interface.
func filename(label string) string {
	base := strings.Trim(notInFilename.ReplaceAllString(strings.ToLower(label), "-"), "-")
	return orDefault(base[:min(15, len(base))], "powernode") + ".conf"
}

func (f DeviceFile) hash() string {
	sum := sha256.Sum256([]byte(f.Config))
	return hex.EncodeToString(sum[:])
}

// HandOut records that a file is handed out, before it is: whoever gets it has a fresh one.
func (s *Service) HandOut(ctx context.Context, tx *store.Tx, f DeviceFile) error {
	now := store.At(tx.Now())
	for _, d := range f.Devices {
		d.ConfigHash, d.LastDownloadedAt, d.StaleSince = f.hash(), &now, nil
		if err := store.UpdateUserDevice(ctx, tx, d); err != nil {
			return fmt.Errorf("change device %s: %w", d.Label, err)
		}
		_, err := tx.Audit(ctx, store.AuditEntry{AccountID: d.AccountID, Action: "read", ResourceType: "Sdwan::UserDevice", ResourceID: string(d.ID),
			New: store.Object{"label": d.Label, "last_downloaded_at": now.String()}})
		if err != nil {
			return err
		}
		err = signal.Close(ctx, tx, d.AccountID, string(d.ID), staleKind, signal.Subject{NetworkID: d.NetworkID}, store.Object{"user_device_id": string(d.ID)})
		if err != nil {
			return err
		}
	}
	return nil
}

// deviceFilesChanged looks whether the files that a network's devices have were made stale, and says so once.
func (s *Service) deviceFilesChanged(ctx context.Context, tx *store.Tx, acct store.AccountID, id store.NetworkID) error {
	devices, err := store.UserDevicesByNetwork(ctx, &tx.View, acct, id)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if d.ConfigHash == "" {
			continue
		}
		g, err := store.AccessGrantByID(ctx, &tx.View, acct, d.GrantID)
		if err != nil {
			return err
		}
		f, err := s.deviceFile(ctx, &tx.View, acct, g.UserID, d.Label)
		if schema.CodeOf(err) == schema.Internal && err != nil {
			return err
		}
		if err != nil {
			continue // there is no file to be stale against
		}
		if err := s.markStale(ctx, tx, d, f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) markStale(ctx context.Context, tx *store.Tx, d store.UserDevice, f DeviceFile) error {
	about := signal.Subject{NetworkID: d.NetworkID}
	switch stale := f.hash() != d.ConfigHash; {
	case stale == (d.StaleSince != nil):
		return nil
	case !stale:
		d.StaleSince = nil
		if err := store.UpdateUserDevice(ctx, tx, d); err != nil {
			return err
		}
		return signal.Close(ctx, tx, d.AccountID, string(d.ID), staleKind, about, store.Object{"user_device_id": string(d.ID)})
	}
	now := store.At(tx.Now())
	d.StaleSince = &now
	if err := store.UpdateUserDevice(ctx, tx, d); err != nil {
		return err
	}
	gateway := ""
	for _, e := range f.Entries {
		if e.NetworkID == string(d.NetworkID) {
			gateway = e.GatewayPeerID
		}
	}
	// What a file names of the network is its gateway, its key and its endpoint: any of them means that it doesn't work.
	return signal.Open(ctx, tx, d.AccountID, string(d.ID), signal.Event{Kind: staleKind, Severity: signal.High, Subject: about,
		Payload: store.Object{"user_device_id": string(d.ID), "gateway_peer_id": gateway, "changes": []string{"gateway, its key, its endpoint or the prefixes behind it"}}})
}
