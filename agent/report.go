package agent

import (
	"context"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"powernode/sdwan"
)

const (
	reportEvery = 30 * time.Second
	// debounce gathers changes that come together into one report.
	debounce       = 50 * time.Millisecond
	observeTimeout = 2 * time.Second
)

// reportLoop reports at least every reportEvery, and soon after a change.
func (a *Agent) reportLoop(ctx context.Context) {
	b := backoff{low: 500 * time.Millisecond, high: 15 * time.Second}
	next := time.NewTimer(0)
	defer next.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-a.changed:
			if !pause(ctx, debounce) {
				return
			}
			a.drainChanged()
		}
		every, err := a.send(ctx)
		if err == nil {
			b.reset()
			said = ""
			next.Reset(every)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if m := explain(err); m != said {
			a.o.Log.Warn().Str("error", m).Msg("report")
			said = m
		}
		// While the platform is away changes wait for the timer: the report that gets through tells them all.
		if !pause(ctx, wait(err, &b)) {
			return
		}
		next.Reset(0)
	}
}

func (a *Agent) drainChanged() {
	select {
	case <-a.changed:
	default:
	}
}

// send gathers and sends one report and answers when the next is due.
func (a *Agent) send(ctx context.Context) (time.Duration, error) {
	client, err := a.conn.Client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	report := a.gather(ctx)
	ans, err := client.Report(ctx, report)
	a.leave(report, err)
	if err != nil {
		return 0, err
	}
	every := time.Duration(ans.NextReportSeconds) * time.Second
	if every <= 0 || every > reportEvery {
		every = reportEvery
	}
	return every, nil
}

// gather asks every subsystem side by side. One that doesn't answer in time is left out: not measured.
func (a *Agent) gather(ctx context.Context) sdwan.Report {
	r := facts(a.o.Version, a.bootID, a.started)
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	parts := make(chan sdwan.Report, len(a.workers))
	asked := 0
	for _, w := range a.workers {
		r.Subsystems = append(r.Subsystems, w.snapshot())
		o, ok := w.sub.(Observer)
		if !ok || !w.begin() {
			continue
		}
		asked++
		a.observers.Go(func() { a.observe(ctx, w, o, parts) }) // parts has room for every answer, also a late one
	}
	for range asked {
		select {
		case p := <-parts:
			merge(&r, p)
		case <-ctx.Done():
			r.Findings = nil // not all have said: not measured
			return a.finish(r)
		}
	}
	if r.Findings == nil {
		r.Findings = []sdwan.Finding{} // all have said, and none found something
	}
	return a.finish(r)
}

func (a *Agent) observe(ctx context.Context, w *worker, o Observer, parts chan<- sdwan.Report) {
	defer w.end()
	var part sdwan.Report
	if err := guard(func() error { return o.Observe(ctx, &part) }); err != nil {
		w.log.Debug().Err(err).Msg("observe")
	}
	parts <- part // what it read before an error is true all the same
}

func (a *Agent) finish(r sdwan.Report) sdwan.Report {
	r.Tasks = append(r.Tasks, a.tasks.reports()...)
	r.SentAt = time.Now().UTC()
	return r
}

// merge adds the sections of one subsystem. Sections have one owner each, but for the lists and the capabilities.
func merge(r *sdwan.Report, p sdwan.Report) {
	r.Findings = append(r.Findings, p.Findings...)
	r.Keys = append(r.Keys, p.Keys...)
	r.Tunnels = append(r.Tunnels, p.Tunnels...)
	r.Endpoints = append(r.Endpoints, p.Endpoints...)
	r.HostRoutes = append(r.HostRoutes, p.HostRoutes...)
	r.HostRoutesRead = r.HostRoutesRead || p.HostRoutesRead
	r.Tasks = append(r.Tasks, p.Tasks...)
	r.Probes = append(r.Probes, p.Probes...)
	if p.K3s != nil {
		r.K3s = p.K3s
	}
	if p.Modules != nil {
		if r.Modules == nil {
			r.Modules = map[string]string{}
		}
		maps.Copy(r.Modules, p.Modules)
	}
	if c := p.Capabilities; c != nil {
		r.Capabilities.KernelWireGuard = r.Capabilities.KernelWireGuard || c.KernelWireGuard
		r.Capabilities.NFTables = r.Capabilities.NFTables || c.NFTables
		r.Capabilities.Systemd = r.Capabilities.Systemd || c.Systemd
		r.Capabilities.CgroupVersion = max(r.Capabilities.CgroupVersion, c.CgroupVersion)
	}
}

// facts reads what the machine says of itself. What can't be read stays zero.
func facts(version, boot string, started time.Time) sdwan.Report {
	r := sdwan.Report{BootID: boot, AgentVersion: version, Architecture: runtime.GOARCH,
		UptimeSeconds: int64(time.Since(started) / time.Second), Capabilities: capabilities(),
		MachineID: line(machineIDFile), KernelBootID: line(kernelBootIDFile)}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(b), " ")
		r.Load, _ = strconv.ParseFloat(first, 64)
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		r.MemoryTotalKB, r.MemoryFreeKB = memory(string(b))
	}
	return r
}

func memory(meminfo string) (total, available int64) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			total = n
		case "MemAvailable:":
			available = n
		}
	}
	return total, available
}
