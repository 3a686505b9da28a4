package rig

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	probePath = "/usr/local/bin/spec-probe"
	probeWord = "spec-probe"

	// dialTimeout is how long silence lasts before it counts: an answer on a busy host takes less.
	dialTimeout = 5 * time.Second
	// readyzEvery is how often the loop asks, readyzPatience how long one question may take before it counts as missed.
	readyzEvery    = 100 * time.Millisecond
	readyzPatience = 10 * time.Second
)

// Probe is what a test's own program does inside a machine. A TestMain calls it first: it answers whether these are
// arguments of ours, and what came of it.
func Probe(args []string) (ours bool, err error) {
	if len(args) < 3 || args[1] != probeWord {
		return false, nil
	}
	switch args[2] {
	case "dial":
		return true, dial(os.Stdout, args[3:])
	case "listen":
		return true, listen(os.Stdout, args[3:])
	case "readyz":
		return true, readyz(os.Stdout, args[3])
	default:
		return true, fmt.Errorf("no such probe: %s", args[2])
	}
}

// readyz asks again and again, and prints an answer a line.
func readyz(out io.Writer, kubeconfig string) error {
	server, client, err := kubeClient(kubeconfig)
	if err != nil {
		return err
	}
	tick := time.NewTicker(readyzEvery)
	defer tick.Stop()
	for range tick.C {
		fmt.Fprintln(out, askReadyz(client, server))
	}
	return nil
}

func askReadyz(client *http.Client, server string) string {
	res, err := client.Get(server + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Sprintf("HTTP %d: %s", res.StatusCode, strings.ReplaceAll(string(body), "\n", " "))
	}
	return string(body)
}

// kubeClient takes a connection of its own for each question: a loop over one connection would prove less.
func kubeClient(path string) (server string, client *http.Client, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	var c struct {
		Clusters []struct {
			Cluster struct {
				Server string `yaml:"server"`
				CA     string `yaml:"certificate-authority-data"`
			} `yaml:"cluster"`
		} `yaml:"clusters"`
		Users []struct {
			User struct {
				Cert string `yaml:"client-certificate-data"`
				Key  string `yaml:"client-key-data"`
			} `yaml:"user"`
		} `yaml:"users"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil || len(c.Clusters) != 1 || len(c.Users) != 1 {
		return "", nil, fmt.Errorf("%s is no kubeconfig of one cluster: %w", path, err)
	}
	ca, errCA := base64.StdEncoding.DecodeString(c.Clusters[0].Cluster.CA)
	cert, errCert := base64.StdEncoding.DecodeString(c.Users[0].User.Cert)
	key, errKey := base64.StdEncoding.DecodeString(c.Users[0].User.Key)
	pair, errPair := tls.X509KeyPair(cert, key)
	if err := errors.Join(errCA, errCert, errKey, errPair); err != nil {
		return "", nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	return c.Clusters[0].Cluster.Server, &http.Client{Transport: transport, Timeout: readyzPatience}, nil
}

// dial tries all targets at once and prints a line for each.
func dial(out io.Writer, targets []string) error {
	results := make([]string, len(targets))
	var wg sync.WaitGroup
	for n, target := range targets {
		wg.Go(func() {
			protocol, address, _ := strings.Cut(target, " ")
			results[n] = attempt(protocol, address)
		})
	}
	wg.Wait()
	for n, target := range targets {
		fmt.Fprintf(out, "%s = %s\n", target, results[n])
	}
	return nil
}

// attempt says whether somebody answers. A refusal is an answer, an error of our own is none.
func attempt(protocol, address string) string {
	conn, err := net.DialTimeout(protocol, address, dialTimeout)
	if err == nil {
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(dialTimeout)); err == nil {
			if _, err = io.WriteString(conn, "hello\n"); err == nil {
				_, err = conn.Read(make([]byte, 16))
			}
		}
	}
	var timeout net.Error
	switch {
	case err == nil:
		return "reached"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silence"
	default:
		return err.Error()
	}
}

// listen answers everybody on all addresses, and prints who came, until it is killed.
func listen(out io.Writer, ports []string) error {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	failed := make(chan error)
	for _, each := range ports {
		protocol, port, _ := strings.Cut(each, " ")
		if protocol == "udp" {
			conn, err := net.ListenPacket("udp", ":"+port)
			if err != nil {
				return err
			}
			go func() { failed <- echoPackets(conn, func(from net.Addr) { say("udp %s %s", port, from) }) }()
			continue
		}
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		go func() { failed <- greet(l, func(from net.Addr) { say("tcp %s %s", port, from) }) }()
	}
	say("listening")
	return <-failed
}

func echoPackets(conn net.PacketConn, came func(net.Addr)) error {
	buffer := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		came(from)
		if _, err := conn.WriteTo(buffer[:n], from); err != nil {
			return err
		}
	}
}

func greet(l net.Listener, came func(net.Addr)) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		came(conn.RemoteAddr())
		_, _ = io.WriteString(conn, "welcome\n") // whoever left already doesn't need it
		_ = conn.Close()
	}
}
