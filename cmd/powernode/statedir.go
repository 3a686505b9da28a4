package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// stateDir is the absolute path of the folder that holds all that one control plane keeps. It is 0700, its files 0600;
// one that is wider or another's is refused, because what lies in it opens everything.
type stateDir string

func (d stateDir) file(name string) string { return filepath.Join(string(d), name) }

func (d stateDir) storeFile() string     { return d.file("store.db") }
func (d stateDir) keyFile() string       { return d.file("seal.key") }       // seals secrets
func (d stateDir) humanKeyFile() string  { return d.file("human.key") }      // a person's key, sealed with their passphrase
func (d stateDir) pidFile() string       { return d.file("serve.pid") }      // held locked by serve
func (d stateDir) startLock() string     { return d.file("start.lock") }     // held by whoever starts serve
func (d stateDir) logFile() string       { return d.file("serve.log") }      // of a detached serve
func (d stateDir) listenersFile() string { return d.file("listeners.json") } // the agent API's addresses
func (d stateDir) agentsFile() string    { return d.file("agents.json") }    // those that an operator named
func (d stateDir) httpFile() string      { return d.file("http.json") }      // where serve answers over HTTP
func (d stateDir) socketFile() string    { return d.file("control.sock") }

const stateDirFlag = "state-dir"

// defaultStateDir is $XDG_STATE_HOME/powernode, or ~/.local/state/powernode. Empty: there is no home either.
func defaultStateDir() string {
	if base := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "powernode")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "state", "powernode")
}

// openStateDir makes the state directory that a command's flags name, or refuses it. One that was named is made in a folder
// that is there: a path that was mistyped makes no installation somewhere else.
func openStateDir(cmd *cobra.Command) (stateDir, error) {
	d, err := namedStateDir(cmd)
	if err != nil {
		return "", err
	}
	if cmd.Flags().Changed(stateDirFlag) {
		if _, err := os.Stat(filepath.Dir(string(d))); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("there is no folder %s to make the state directory in: make it first, or name another", filepath.Dir(string(d)))
		}
	}
	return d, d.prepare()
}

// makingStateDir is openStateDir of a command that is no first step: that it makes an installation where a flag says is told,
// for the flag may be mistyped.
func makingStateDir(cmd *cobra.Command) (stateDir, error) {
	d, err := namedStateDir(cmd)
	if err != nil {
		return "", err
	}
	stood := d.installed()
	if d, err = openStateDir(cmd); err == nil && !stood && cmd.Flags().Changed(stateDirFlag) {
		fmt.Fprintf(cmd.ErrOrStderr(), "powernode: there was no installation in %s: one is made\n", d)
	}
	return d, err
}

// standingStateDir is the state directory that a command's flags name, of a command that makes none.
func standingStateDir(cmd *cobra.Command) (stateDir, error) {
	d, err := namedStateDir(cmd)
	if err != nil {
		return "", err
	}
	if !d.installed() {
		return "", fmt.Errorf("there is no installation in %s: --%s names another folder; powernode init or powernode serve makes one",
			d, stateDirFlag)
	}
	return d, d.prepare()
}

// installed says whether a control plane has been started on the state directory.
func (d stateDir) installed() bool {
	if info, err := os.Stat(d.storeFile()); err == nil && info.Size() > 0 {
		return true
	}
	_, err := os.Stat(d.pidFile())
	return err == nil
}

// namedStateDir is the path that a command's flags name.
func namedStateDir(cmd *cobra.Command) (stateDir, error) {
	path, err := cmd.Flags().GetString(stateDirFlag)
	if err != nil {
		return "", fmt.Errorf("read flag %s: %w", stateDirFlag, err)
	}
	if path == "" {
		return "", errors.New("no state directory: pass --state-dir, or set XDG_STATE_HOME or HOME")
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("find the state directory: %w", err)
	}
	return stateDir(path), nil
}

// prepare makes the folder and its private store file, and refuses what others can read or own.
func (d stateDir) prepare() error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := private(string(d), fs.ModeDir); err != nil {
		return err
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := private(d.file(e.Name()), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// SQLite would make it as wide as the umask allows; its journal takes the width of the file.
	f, err := os.OpenFile(d.storeFile(), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("make the store's file: %w", err)
	}
	return f.Close()
}

// private refuses what is no plain file or folder, is another's, or is open to others.
func private(path string, kind fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at the state directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Type() != kind:
		return fmt.Errorf("%s is refused: it is %s", path, info.Mode())
	case !ok || int(stat.Uid) != os.Geteuid() && (kind == fs.ModeDir || stat.Uid != 0): // root may leave a file here
		return fmt.Errorf("%s is refused: it belongs to another user", path)
	case info.Mode().Perm()&0o077 != 0 && int(stat.Uid) == os.Geteuid():
		return fmt.Errorf("%s is refused: others may use it (%s); run chmod go-rwx on it", path, info.Mode().Perm())
	}
	return nil
}
