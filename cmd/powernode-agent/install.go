package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"powernode/agent"
	"powernode/agent/install"
)

func installCommand() *cobra.Command {
	var r install.Request
	var tokenFile string
	o := install.Options{Version: version}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Enrol this machine and keep its agent running",
		Long: "Enrol this machine as an instance of the provider manual and make the agent a service of systemd. The whole command comes from\n" +
			"system_provision_instance; it is run as root. The token is a secret: it comes by a file of mode 0600, or /dev/stdin.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if r.Token, err = readToken(tokenFile); err != nil {
				return err
			}
			o.Log = newLogger(cmd.ErrOrStderr())
			o.Run = func(ctx context.Context) error {
				return runAgent(ctx, agent.Options{StateDir: o.StateDir, RunDir: o.RunDir, Version: version, Log: o.Log})
			}
			ctx, stop := untilSignal(cmd.Context()) // a machine that leaves first takes a while; one that is cut off runs its agent again
			defer stop()
			if err := install.Install(ctx, o, r); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "this machine is instance %s; its agent runs, and starts with the machine\n", r.InstanceID)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.InstanceID, "instance", "", "id of the instance that the token is for")
	f.StringArrayVar(&r.URLs, "url", nil, "address of the platform's agent API, https://HOST:PORT (repeatable)")
	f.StringVar(&r.CASHA256, "ca-sha256", "", "SHA-256 of the platform's CA certificate (DER, hex)")
	f.StringVar(&tokenFile, "token-file", "", "file with the one-time token")
	f.BoolVar(&r.Replace, "replace", false, "enrol also where this machine is another instance by now, which it gives up; one that has ended is cleaned up first")
	f.StringVar(&o.StateDir, "state-dir", defaultStateDir, "where the agent keeps identity, keys and the last document")
	f.StringVar(&o.RunDir, "run-dir", defaultRunDir, "where it keeps what ends with the machine's uptime")
	for _, name := range []string{"instance", "url", "ca-sha256", "token-file"} {
		_ = cmd.MarkFlagRequired(name) // the flag is there: it was declared above
	}
	return cmd
}
