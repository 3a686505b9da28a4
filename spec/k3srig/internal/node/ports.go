package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

const (
	kubeletPort = 10250
	vxlanPort   = 8472
)

// listenKubelet answers on the kubelet's port, so that a firewall's effect on
// it can be measured. There is no kubelet API behind it.
func listenKubelet(ctx context.Context, ips []netip.Addr, certFile, keyFile string) error {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("load kubelet's certificate: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	})
	srv := &http.Server{
		Handler:           mux,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	for _, ip := range ips {
		l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), strconv.Itoa(kubeletPort)))
		if err != nil {
			srv.Close()
			return fmt.Errorf("listen on the kubelet's port: %w", err)
		}
		go func() {
			if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
				slog.Error("kubelet's port", "err", err)
			}
		}()
	}
	context.AfterFunc(ctx, func() { srv.Close() })
	return nil
}

// holdVXLANPort keeps flannel's port open and drops what comes in.
func holdVXLANPort(ctx context.Context, ips []netip.Addr) error {
	for _, ip := range ips {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, vxlanPort)))
		if err != nil {
			return fmt.Errorf("flannel exited: open its port: %w", err)
		}
		context.AfterFunc(ctx, func() { c.Close() })
		go func() {
			buf := make([]byte, 2048)
			for {
				if _, _, err := c.ReadFromUDPAddrPort(buf); errors.Is(err, net.ErrClosed) {
					return
				}
			}
		}()
	}
	return nil
}
