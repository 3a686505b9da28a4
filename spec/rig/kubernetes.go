package rig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// K3s is the binary that machines are to run.
type K3s struct {
	Path    string
	Version string
	What    string // for people: K3s, or the stand-in
	SHA256  string
}

const officialURL = "https://github.com/k3s-io/k3s/releases/download/v1.36.5%2Bk3s1/k3s"
const officialSHA256 = "d73847bcd3c5fccef0115b372e2f9a91f3032dc84bbf71518a4617565294d313"

// ChooseK3s takes K3s where it is given (K3S=PATH) or can be downloaded, and the stand-in where not (K3S=standin asks
// for it). cache is where downloads and builds are kept; spec is the folder with the stand-in's module.
func ChooseK3s(ctx context.Context, given, cache, spec string, progress io.Writer) (K3s, error) {
	switch given {
	case "standin":
		return standin(ctx, cache, spec, progress)
	case "":
		path := filepath.Join(cache, "k3s-official")
		err := download(ctx, path)
		if err == nil {
			return describe(ctx, path, "K3s, the official release")
		}
		fmt.Fprintf(progress, "K3s can't be downloaded here (%v): the stand-in takes its place\n", err)
		return standin(ctx, cache, spec, progress)
	default:
		return describe(ctx, given, "K3s as given in K3S")
	}
}

func standin(ctx context.Context, cache, spec string, progress io.Writer) (K3s, error) {
	path := filepath.Join(cache, "k3s")
	build := exec.CommandContext(ctx, "sh", filepath.Join(spec, "k3srig", "build.sh"), path)
	build.Stdout, build.Stderr = progress, progress
	if err := build.Run(); err != nil {
		return K3s{}, fmt.Errorf("build the stand-in for K3s: %w", err)
	}
	return describe(ctx, path, "the stand-in for K3s (a real API server, controller manager and etcd; no containers)")
}

func describe(ctx context.Context, path, what string) (K3s, error) {
	out, err := output(exec.CommandContext(ctx, path, "--version"))
	if err != nil {
		return K3s{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	words := strings.Fields(string(out))
	if len(words) < 3 {
		return K3s{}, fmt.Errorf("ask %s for its version: it said %q", path, out)
	}
	f, err := os.Open(path)
	if err != nil {
		return K3s{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return K3s{}, err
	}
	abs, err := filepath.Abs(path)
	return K3s{Path: abs, Version: words[2], What: what, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// download fetches the official release once, and checks it.
func download(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 10 * time.Second}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, officialURL, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the release's server says %s", response.Status)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(response.Body, 512<<20)); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != officialSHA256 {
		return fmt.Errorf("the release's SHA-256 is %s, want %s", got, officialSHA256)
	}
	if err := f.Chmod(0o755); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// Provide puts the binary into the platform's store and makes it the current version of both K3s modules; what parks the
// person approves.
func (i *Installation) Provide(ctx context.Context, k K3s) error {
	if _, err := i.Run(ctx, "artifact", "add", k.Path); err != nil {
		return err
	}
	modules, err := i.Call(ctx, "system_list_modules", Object{})
	if err != nil {
		return err
	}
	for _, name := range []string{"k3s-server", "k3s-agent"} {
		module := Find(List(modules, "modules"), "name", name)
		_, err := i.Approved(ctx, "system_create_module_version", Object{"module_id": module["id"], "version": k.Version, "make_current": true,
			"artifacts": []Object{{"os": "linux", "arch": "amd64", "file": filepath.Base(k.Path), "sha256": k.SHA256}}})
		if refusal, ok := err.(*Refusal); ok && refusal.Code == "conflict" { // Call answers it bare
			continue // the built-in version is the same release
		}
		if err != nil {
			return err
		}
	}
	return nil
}
