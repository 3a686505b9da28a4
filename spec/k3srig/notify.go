package main

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyReady tells systemd, for units of type notify.
func notifyReady() {
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		slog.Warn("notify systemd", "err", err)
	}
}
