package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rs/zerolog"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"powernode/agent/atomicfile"
	"powernode/nodeapi"
	"powernode/sdwan"
)

// Options say where a device keeps its things.
type Options struct {
	StateDir  string // device.key, and what is up
	ConfigDir string // of Join: /etc/wireguard
	Log       zerolog.Logger
}

// fileName is what the platform may call a configuration: the name becomes an interface's elsewhere.
var fileName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,14}\.conf$`)

// Join redeems a bootstrap URL and answers the path of the configuration that it wrote.
func Join(ctx context.Context, o Options, bootstrapURL string) (string, error) {
	key, err := ensureKey(o.StateDir)
	if err != nil {
		return "", err
	}
	ans, err := nodeapi.RedeemDevice(ctx, bootstrapURL, nodeapi.DeviceBootstrapRequest{PublicKey: key.PublicKey().String()})
	if err != nil {
		return "", fmt.Errorf("redeem the bootstrap URL: %w", err)
	}
	if !fileName.MatchString(ans.Filename) {
		return "", fmt.Errorf("the platform named the file %q", ans.Filename)
	}
	text, err := sdwan.WithPrivateKey(ans.Config, key.String())
	if err != nil {
		return "", err
	}
	if _, err := parseConfig(text); err != nil {
		return "", fmt.Errorf("the platform's configuration: %w", err)
	}
	if err := os.MkdirAll(o.ConfigDir, 0o700); err != nil {
		return "", fmt.Errorf("make the configuration's directory: %w", err)
	}
	path := filepath.Join(o.ConfigDir, ans.Filename)
	return path, atomicfile.Write(path, []byte(text), 0o600)
}

// ensureKey reads this machine's device key, or makes it.
func ensureKey(stateDir string) (wgtypes.Key, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return wgtypes.Key{}, fmt.Errorf("make the state directory: %w", err)
	}
	path := filepath.Join(stateDir, "device.key")
	b, err := os.ReadFile(path)
	if err == nil {
		key, err := wgtypes.ParseKey(strings.TrimSpace(string(b)))
		if err != nil {
			return wgtypes.Key{}, fmt.Errorf("%s is no WireGuard key", path)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return wgtypes.Key{}, fmt.Errorf("read the device's key: %w", err)
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("make the device's key: %w", err)
	}
	return key, atomicfile.Write(path, []byte(key.String()+"\n"), 0o600)
}
