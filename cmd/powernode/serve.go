package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	stdlog "log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"powernode/agent/atomicfile"
	"powernode/nodeapi"
	"powernode/platform/cluster"
	"powernode/platform/fleet"
	"powernode/platform/governance"
	"powernode/platform/network"
	"powernode/platform/provider"
	"powernode/platform/provider/local"
	"powernode/platform/provider/manual"
	"powernode/sdwan"
	"powernode/store"
	"powernode/tools"
)

// tickEvery is how often time alone is looked at: joins that took too long, members that fell silent.
const tickEvery = time.Second

func serveCommand() *cobra.Command {
	var web httpChoice
	var agents []string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the control plane in the foreground",
		Long: "Run the control plane in the foreground: the store, the agents' API and the local socket that powernode mcp and\n" +
			"powernode call speak to. The first start makes everything that it needs. It needs no root, except to make machines\n" +
			"with the provider local.\n\n" +
			"With --http it also serves REST (/api/v1) and MCP (/mcp) to whoever has a token of powernode token, and later starts\n" +
			"do too, until --http off. Beyond loopback that takes a TLS certificate.",
		Example: "  powernode serve --http 127.0.0.1:8470\n" +
			"  powernode serve --http 192.0.2.7:8470 --tls-cert server.crt --tls-key server.key",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := web.check(); err != nil {
				return err
			}
			dir, err := openStateDir(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			log := zerolog.New(cmd.ErrOrStderr()).With().Timestamp().Logger()
			if !cmd.Flags().Changed("agents") {
				agents = nil // what is recorded stands
			}
			return serve(ctx, dir, web, agents, log)
		},
	}
	cmd.Flags().StringVar(&web.address, "http", "", "serve REST and MCP over HTTP at ADDRESS:PORT, now and at later starts; off ends that")
	cmd.Flags().StringArrayVar(&agents, "agents", nil, "serve the agents' API at ADDRESS or ADDRESS:PORT for machines elsewhere, now and at\nlater starts; off ends that (repeatable)")
	cmd.Flags().StringVar(&web.cert, "tls-cert", "", "file of the certificate for --http, with its chain, as PEM")
	cmd.Flags().StringVar(&web.key, "tls-key", "", "file of the certificate's key, as PEM")
	return cmd
}

// serve runs the control plane of a state directory until the context ends. One at a time: a second one is refused.
func serve(ctx context.Context, dir stateDir, web httpChoice, agents []string, log zerolog.Logger) (err error) {
	lock, err := lockServe(dir)
	if err != nil {
		return err
	}
	defer lock.Close() // closing is what unlocks
	sealer, err := openSealer(dir.keyFile())
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Options{Path: dir.storeFile()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s, err := newServices(dir, db, sealer, log)
	if err != nil {
		return err
	}
	account, err := s.firstStart(ctx)
	if err != nil {
		return fmt.Errorf("prepare the first start: %w", err)
	}
	if err := s.listeners.resume(ctx); err != nil {
		log.Error().Err(err).Msg("agents can't reach the platform")
	}
	defer func() { err = errors.Join(err, s.listeners.close()) }()
	if err := s.listeners.openNamed(ctx, agents); err != nil {
		return err
	}
	c := newControl(s.platform, dir, account, log)
	operators, err := openHTTP(ctx, dir, web, s.platform, c.face, log)
	if err != nil {
		return err
	}
	log.Info().Str("account", string(account)).Str("state_dir", string(dir)).Msg("control plane started")
	return s.run(ctx, c, operators, account)
}

// services are what one control plane is made of.
type services struct {
	platform  *tools.Platform
	listeners *listeners
	reports   *reports
	log       zerolog.Logger
}

func newServices(dir stateDir, db *store.DB, sealer *store.Sealer, log zerolog.Logger) (*services, error) {
	authority, err := fleet.OpenAuthority(string(dir), sealer, nil, nil)
	if err != nil {
		return nil, err
	}
	agent, err := agentBinary()
	if err != nil {
		return nil, err
	}
	machines := local.New(local.Options{StateDir: string(dir), AgentBinary: agent, Log: log})
	networks := &network.Service{Sealer: sealer}
	clusters := &cluster.Service{Network: networks, Sealer: sealer}
	networks.Clusters = clusters
	rules := &governance.Service{Sealer: sealer, Log: log, StateDir: string(dir)}
	clusters.MayJoin = func(ctx context.Context, v *store.View, acct store.AccountID, category string, id store.ClusterID, network store.NetworkID) (bool, error) {
		verdict, err := rules.Decide(ctx, v, governance.PlatformCaller(acct), category, func(context.Context, *store.View) (governance.Reach, error) {
			return governance.ReachOf(id, network), nil
		})
		return verdict == governance.AutoApprove || verdict == governance.NotifyAndProceed, err
	}
	fleets := &fleet.Service{DB: db, Network: networks, Cluster: clusters, Providers: map[string]provider.Provider{local.Type: machines},
		Sealer: sealer, Authority: authority, StateDir: string(dir), MachineID: hostFact("/etc/machine-id"),
		KernelBootID: hostFact("/proc/sys/kernel/random/boot_id"), Log: log}
	p := &tools.Platform{DB: db, Sealer: sealer, Fleet: fleets, Network: networks, Cluster: clusters,
		Governance: rules, Log: log}
	if err := p.Register(); err != nil {
		return nil, err
	}
	db.SetPublish(fleets.Publish)
	s := &services{platform: p, reports: newReports(p), log: log}
	program := &agentProgram{path: agent}
	api := nodeapi.NewServer(&agentAPI{p: p, reports: s.reports, program: program, log: log}, log)
	s.listeners = &listeners{opened: s.recompile, file: dir.listenersFile(), namedFile: dir.agentsFile(), provider: machines, authority: authority, handler: api, log: log}
	fleets.PlatformURLs = s.listeners.urls
	networks.AgentAPI = s.listeners.addresses
	networks.PlatformURL = s.listeners.url
	networks.CAFingerprint = func() string { return fingerprint(authority.CAPEM()) }
	fleets.Elsewhere = &fleet.Elsewhere{URLs: s.listeners.elsewhere, CASHA256: networks.CAFingerprint, Agent: program.describe}
	fleets.Providers[manual.Type] = manual.New(manual.Options{StateDir: string(dir), Reachable: fleets.CheckReachable})
	return s, nil
}

// recompile compiles every document anew: the agents' API has an address now, which firewalls let through.
func (s *services) recompile(ctx context.Context) error {
	return s.platform.DB.Update(ctx, func(tx *store.Tx) error {
		accounts, err := store.Accounts(ctx, &tx.View)
		if err != nil {
			return err
		}
		for _, a := range accounts {
			instances, err := store.Instances(ctx, &tx.View, a.ID, "", "", "")
			if err != nil {
				return err
			}
			for _, i := range instances {
				tx.TouchInstance(i.ID)
			}
		}
		return nil
	})
}

// firstStart makes what a fresh state directory lacks: the account with its prefix, and what is built in.
func (s *services) firstStart(ctx context.Context) (store.AccountID, error) {
	var account store.AccountID
	err := s.platform.DB.Update(ctx, func(tx *store.Tx) error {
		tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", Verb: "first_start", CorrelationID: tx.NewID()})
		all, err := store.Accounts(ctx, &tx.View)
		if err != nil {
			return err
		}
		if len(all) > 0 {
			account = all[0].ID
			return nil
		}
		account = store.AccountID(tx.NewID())
		return s.makeAccount(ctx, tx, account)
	})
	return account, err
}

func (s *services) makeAccount(ctx context.Context, tx *store.Tx, id store.AccountID) error {
	a := store.Account{ID: id, Name: "default"}
	for ok := false; !ok; {
		var random [5]byte
		if err := tx.Random(random[:]); err != nil {
			return err
		}
		a.Prefix.Prefix, ok = sdwan.AccountPrefix(random)
	}
	if err := store.InsertAccount(ctx, tx, a); err != nil {
		return err
	}
	_, err := tx.Audit(ctx, store.AuditEntry{AccountID: id, Action: "created", ResourceType: "Governance::Account", ResourceID: string(id),
		New: store.Object{"name": a.Name, "prefix": a.Prefix.String()}})
	if err != nil {
		return err
	}
	return s.platform.Fleet.Seed(ctx, tx, id)
}

// run owns everything that runs beside the calls, and waits for all of it.
func (s *services) run(ctx context.Context, c *control, operators *operatorHTTP, account store.AccountID) error {
	group, ctx := errgroup.WithContext(ctx)
	if operators != nil {
		group.Go(func() error { return operators.serve(ctx) })
	}
	group.Go(func() error { return c.Serve(ctx) })
	group.Go(func() error { return s.reports.run(ctx) })
	group.Go(func() error { return s.platform.RunEvents(ctx) })
	group.Go(func() error { return s.platform.RunOperations(ctx) })
	group.Go(func() error { return s.platform.RunSensors(ctx) })
	group.Go(func() error { return s.tick(ctx, account) })
	group.Go(func() error {
		if err := s.platform.Fleet.Recover(ctx); err != nil {
			s.log.Error().Err(err).Msg("what was under way at the last stop is not settled")
		}
		if err := s.platform.ResumeOperations(ctx); err != nil {
			s.log.Error().Err(err).Msg("approved operations of the last run are not settled")
		}
		return s.platform.Fleet.RunTasks(ctx)
	})
	return group.Wait()
}

func (s *services) tick(ctx context.Context, account store.AccountID) error {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			err := s.platform.DB.Update(ctx, func(tx *store.Tx) error {
				tx.Act(store.Actor{Kind: governance.KindPlatform, ID: "platform", Verb: "cluster_controller", CorrelationID: tx.NewID()})
				return s.platform.Cluster.Tick(ctx, tx, account)
			})
			if err != nil && ctx.Err() == nil {
				s.log.Error().Err(err).Msg("cluster states not looked at")
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// lockServe holds the state directory for one process and says whose it is.
func lockServe(dir stateDir) (*os.File, error) {
	f, err := os.OpenFile(dir.pidFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("a control plane runs on %s already; powernode stop ends it", dir)
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	return f, err
}

// openSealer reads the key that seals secrets, or makes it. It lies outside the database.
func openSealer(path string) (*store.Sealer, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return nil, err
		}
		if err := atomicfile.Write(path, key, 0o600); err != nil {
			return nil, fmt.Errorf("make the sealing key: %w", err)
		}
		return store.NewSealer(key)
	}
	if err != nil {
		return nil, fmt.Errorf("read the sealing key: %w", err)
	}
	return store.NewSealer(key)
}

// hostFact is what a file of this host's says, by which an agent that runs on it is known; "" when it can't be read.
func hostFact(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// fingerprint is the SHA-256 of a certificate's DER, in hex: what a bootstrap URL carries.
func fingerprint(certPEM string) string {
	block, _ := pem.Decode([]byte(certPEM))
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}

// quiet turns net/http's own log into debug lines: a client that goes away is no error of ours.
func quiet(log zerolog.Logger) *stdlog.Logger {
	return stdlog.New(debugLines{log}, "", 0)
}

type debugLines struct{ log zerolog.Logger }

func (d debugLines) Write(b []byte) (int, error) {
	d.log.Debug().Str("line", strings.TrimSpace(string(b))).Msg("http")
	return len(b), nil
}
