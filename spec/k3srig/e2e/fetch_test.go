package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

const envFetch = "K3SRIG_E2E_FETCH"

// TestMain lets the test's own binary be the program that asks a URL from
// inside a machine.
func TestMain(m *testing.M) {
	if url := os.Getenv(envFetch); url != "" {
		if err := fetchMain(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fetchMain(url string) error {
	cfg := &tls.Config{InsecureSkipVerify: true} // the test looks at answers, not at trust
	if cert := os.Getenv(envFetch + "_CERT"); cert != "" {
		pair, err := tls.LoadX509KeyPair(cert+".crt", cert+".key")
		if err != nil {
			return err
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if user, pw, ok := strings.Cut(os.Getenv(envFetch+"_AUTH"), ":"); ok {
		req.SetBasicAuth(user, pw)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: cfg}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Printf("%d ", resp.StatusCode)
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// fetch asks a URL from inside the machine and answers "CODE BODY". cert names
// files without their ending, auth is user:password; both may be empty.
func (m *machine) fetch(url, cert, auth string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := m.command(ctx, self)
	cmd.Env = append(cmd.Env, envFetch+"="+url, envFetch+"_CERT="+cert, envFetch+"_AUTH="+auth)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
