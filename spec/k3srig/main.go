// Command k3srig builds a stand-in for the k3s binary; see README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"k8s.io/component-base/version"

	"powernode/spec/k3srig/internal/config"
)

const usage = `NAME:
   k3s - stand-in for Kubernetes, but small and simple

USAGE:
   k3s [global options] command [command options]

COMMANDS:
   server     Run management server
   agent      Run node agent
   kubectl    Run kubectl

GLOBAL OPTIONS:
   --help, -h     show help
   --version, -v  print the version
`

func main() {
	os.Exit(run(os.Args))
}

func run(args []string) int {
	if filepath.Base(args[0]) == "kubectl" {
		return kubectl(args[1:])
	}
	if len(args) < 2 {
		fmt.Print(usage)
		return 0
	}
	rest := args[2:]
	switch args[1] {
	case "server":
		return service(config.RoleServer, rest, runServer)
	case "agent":
		return service(config.RoleAgent, rest, runAgent)
	case "kubectl":
		return kubectl(rest)
	case "--version", "-v":
		fmt.Printf("k3s version %s (standin)\ngo version %s\n", version.Get().GitVersion, runtime.Version())
		return 0
	case "--help", "-h", "help", "h":
		fmt.Print(usage)
		return 0
	}
	fmt.Fprintf(os.Stderr, "No help topic for '%s'\n", args[1])
	return 3 // what K3s' command line library answers
}

// service reads the configuration and runs a server or agent until it is told to stop.
func service(role config.Role, args []string, f func(context.Context, *config.Settings) error) int {
	if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		fmt.Printf("USAGE:\n   k3s %s [OPTIONS]\n\nOPTIONS:\n%s", role, config.Help(role))
		return 0
	}
	setLogger(os.Stderr, slog.LevelInfo)
	values, err := config.Load(role, args, os.Getenv)
	if err != nil {
		fmt.Fprintf(os.Stderr, "Incorrect Usage: %v\n\n", err)
		fatal(err)
		return 1
	}
	settings, err := config.NewSettings(role, values)
	if err != nil {
		fatal(err)
		return 1
	}
	if err := logTo(settings); err != nil {
		fatal(err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	slog.Info(fmt.Sprintf("Starting k3s %s (standin)", version.Get().GitVersion))
	if err := f(ctx, settings); err != nil && !errors.Is(err, context.Canceled) {
		fatal(err)
		return 1
	}
	slog.Info("Stopped")
	return 0
}

func logTo(s *config.Settings) error {
	level := slog.LevelInfo
	if s.Debug {
		level = slog.LevelDebug
	}
	out := io.Writer(os.Stderr)
	if s.LogFile != "" {
		f, err := os.OpenFile(s.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open log file: %w", err)
		}
		out = io.MultiWriter(os.Stderr, f)
	}
	setLogger(out, level)
	return nil
}

// levelFatal is K3s' word for the message it ends with.
const levelFatal = slog.LevelError + 4

func fatal(err error) {
	slog.Log(context.Background(), levelFatal, err.Error())
}

func setLogger(w io.Writer, level slog.Level) {
	names := map[slog.Level]string{
		slog.LevelDebug: "debug", slog.LevelInfo: "info", slog.LevelWarn: "warning", slog.LevelError: "error", levelFatal: "fatal",
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if l, ok := a.Value.Any().(slog.Level); ok && a.Key == slog.LevelKey {
				return slog.String(a.Key, names[l])
			}
			return a
		},
	})))
}
