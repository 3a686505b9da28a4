package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"powernode/agent"
	"powernode/agent/install"
	"powernode/nodeapi"
)

func enrollCommand() *cobra.Command {
	var stateDir, file, instance, tokenFile, caFile string
	var urls []string
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Enrol this machine with a one-time token",
		Long: "Enrol this machine: with --enrollment FILE, or with --instance, --url, --token-file and --ca-file.\n" +
			"Token and file are secrets: mode 0600, or /dev/stdin. The file given with --enrollment is removed after use.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := enrollment(file, instance, tokenFile, caFile, urls)
			if err != nil {
				return err
			}
			if err := install.Return(stateDir); err != nil {
				return err
			}
			if err := agent.Enroll(cmd.Context(), stateDir, version, e); err != nil {
				return err
			}
			if file != "" && file != "/dev/stdin" {
				if err := os.Remove(file); err != nil {
					return fmt.Errorf("enrolled, but the file with the used token is still there: %w", err)
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "enrolled as instance %s\n", e.InstanceID)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&stateDir, "state-dir", defaultStateDir, "where the agent keeps identity, keys and the last document")
	f.StringVar(&file, "enrollment", "", "file with the whole enrolment, as the platform gave it")
	f.StringVar(&instance, "instance", "", "id of the instance that the token is for")
	f.StringArrayVar(&urls, "url", nil, "address of the platform's agent API, https://HOST:PORT (repeatable)")
	f.StringVar(&tokenFile, "token-file", "", "file with the one-time token")
	f.StringVar(&caFile, "ca-file", "", "file with the platform's CA certificate (PEM)")
	return cmd
}

func enrollment(file, instance, tokenFile, caFile string, urls []string) (nodeapi.Enrollment, error) {
	if file != "" {
		if instance != "" || tokenFile != "" || caFile != "" || len(urls) > 0 {
			return nodeapi.Enrollment{}, errors.New("--enrollment says everything; leave the other flags out")
		}
		return agent.ReadEnrollment(file)
	}
	if instance == "" || tokenFile == "" || caFile == "" || len(urls) == 0 {
		return nodeapi.Enrollment{}, errors.New("give --enrollment, or all of --instance, --url, --token-file and --ca-file")
	}
	token, err := readToken(tokenFile)
	if err != nil {
		return nodeapi.Enrollment{}, err
	}
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nodeapi.Enrollment{}, fmt.Errorf("read the CA: %w", err)
	}
	return nodeapi.Enrollment{InstanceID: instance, Token: token, PlatformURLs: urls, CAPEM: string(ca)}, nil
}

// maxToken is more than any token has.
const maxToken = 4 << 10

// readToken reads a one-time token from a file that others can't read, or from a pipe.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("token file %s is %#o, not 0600", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("read the token: %s is empty", path)
	}
	return token, nil
}
