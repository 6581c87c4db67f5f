package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/leasehold-go/leasehold/stores"
	"github.com/spf13/cobra"
)

const serveLong = `Serve the store's locks over HTTP and JSON, for programs in any language and for
machines that can reach only one port. The console is at the same address. A listener
that other machines reach needs TLS and an --access file, or --insecure.

# Instances
See docs/serve.md for the calls. Any number of instances may stand behind a balancer
over one shared store; none of them keeps anything that matters. The store "memory:" is
the memory of this process, and is gone with it.

With --history FILE, what happened is still known after a restart. The file belongs to this
instance alone. A 0 for --history-keep or --history-size sets no bound.

Certificates, the --access file and webhook secrets are read again when they change. Port 0 of
--listen is a free port.

# Observing
/metrics has metrics for Prometheus. A webhook gets a POST of JSON when a lease is lost or evicted
and when somebody has waited for --webhook-wait. "leasehold schema webhook" describes it. Notices
are retried for an hour and may come twice. With --webhook-secret-file each is signed as
"Standard Webhooks" describes; the file has a secret on each line. If OTEL_EXPORTER_OTLP_ENDPOINT
is set, a span of each call is sent there by OTLP over HTTP. See docs/observe.md.

# Stopping
TERM and INT stop the service. Callers that wait are asked to repeat the call, and calls
under way are served. Leases stay held, except on ZooKeeper and "memory:", where they end
with the process.

# Exit codes
  64  wrong usage
  69  the store is unreachable
  70  the address is not available
  77  the store denies access`

// mostStreams limits the open calls on one HTTP/2 connection. A driver has one for each claim that
// waits.
const mostStreams = 10_000

// defaultListen is reachable only from this machine.
const defaultListen = "127.0.0.1:7400"

// stopWithin limits how long a stopping instance waits for calls. headersWithin limits how long a
// client may take to send the headers of a request. idleFor limits how long a connection may be
// idle.
const (
	stopWithin    = 10 * time.Second
	headersWithin = 5 * time.Second
	idleFor       = 2 * time.Minute
)

// A service is one run of "leasehold serve".
type service struct {
	app      *app
	listen   string
	cert     string
	key      string
	clientCA string
	access   string
	audit    string
	insecure bool
	user     string   // header in which a proxy names a signed-in person
	from     []string // addresses of that proxy
	history  historyFlags
	webhook  webhookFlags
	opts     serve.Options
}

func newServeCommand(a *app) *cobra.Command {
	s := &service{app: a}
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the locks over HTTP",
		Long:  serveLong,
		Annotations: map[string]string{helpFlags: `Listen: listen host
Security: tls-cert tls-key client-ca access insecure audit
History and notices: history webhook webhook-secret-file
Limits: rate`},
		Example: `  leasehold serve
  leasehold --store redis://host/0 serve --listen 127.0.0.1:7400
  curl --json '{"name":"job","ttl_ms":30000}' http://127.0.0.1:7400/v1/acquire`,
		Args: argNames(),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", defaultListen, "listen on `ADDRESS`")
	flags.StringVar(&s.cert, "tls-cert", "", "serve TLS with the certificate chain in `FILE`")
	flags.StringVar(&s.key, "tls-key", "", "private key of the certificate, in `FILE`")
	flags.StringVar(&s.clientCA, "client-ca", "", "verify client certificates with the CAs in `FILE`")
	flags.StringVar(&s.access, "access", "", "rules for which client may do what, in `FILE`")
	flags.StringVar(&s.user, "proxy-user", "", "a reverse proxy names who has signed in, in `HEADER`")
	flags.StringSliceVar(&s.from, "proxy-from", nil, "addresses of the proxy of --proxy-user, as `CIDR`")
	flags.BoolVar(&s.insecure, "insecure", false, "serve other machines without TLS or --access")
	flags.StringVar(&s.audit, "audit", "", "log each call that changes something to `FILE`, or - for stdout")
	s.history.add(flags)
	s.webhook.add(flags)
	flags.BoolVar(&s.opts.MetricLimits, "metrics-limits", false, "show names with a limit, and how much is used, in /metrics")
	flags.IntVar(&s.opts.Limits.Waiting, "max-waiting", 0, "at most `N` waiting calls (default 20000)")
	flags.IntVar(&s.opts.Limits.Streams, "max-streams", 0, "at most `N` event streams (default 5000)")
	flags.IntVar(&s.opts.Limits.StreamsEach, "max-streams-each", 0, "at most `N` event streams per client (default 1000)")
	flags.IntVar(&s.opts.Limits.WaitingEach, "max-waiting-each", 0, "at most `N` waiting calls per client (default 10000)")
	flags.Float64Var(&s.opts.Limits.Rate, "rate", 0, "at most `N` calls per second and client, renewals and releases excluded (default no limit)")
	flags.StringSliceVar(&s.opts.Hosts, "host", nil, "also accept `NAME` as host from this machine")
	return cmd
}

func (s *service) run(ctx context.Context) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	s.opts.Log, s.opts.Version = s.logger(), buildVersion().Version
	config, closeAudit, err := s.prepare()
	if err != nil {
		return err
	}
	defer closeAudit()
	endTraces, err := s.trace(ctx)
	if err != nil {
		return err
	}
	defer endTraces()
	d, err := s.open(ctx)
	if err != nil {
		return orSignal(ctx, err)
	}
	defer s.app.close(d)
	closeHistory, err := s.openHistory(ctx)
	if err != nil {
		return orSignal(ctx, err)
	}
	defer closeHistory()
	handler, err := serve.New(d, &s.opts)
	if err != nil {
		return usageErrorf("%w", err)
	}
	defer handler.Close()
	l, err := s.listener(ctx)
	if err != nil {
		return err
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return s.serve(ctx, l, handler)
}

// prepare reads the files and checks the flags, before it opens anything.
func (s *service) prepare() (config *tls.Config, closeAudit func(), err error) {
	failed := func(err error) {
		s.opts.Log.Error("a changed file cannot be read, what it said before stays", "error", err.Error())
	}
	closeAudit = func() {}
	if s.access != "" {
		access, err := serve.ReadAccess(s.access, failed)
		if err != nil {
			return nil, nil, usageErrorf("%w", err)
		}
		if err := s.trustProxy(access); err != nil {
			return nil, nil, err
		}
		s.opts.Client = access.Client
	} else if s.user != "" || len(s.from) > 0 {
		return nil, nil, usageErrorf("--proxy-user and --proxy-from need --access, which says who may what")
	}
	if (s.cert == "") != (s.key == "") || s.clientCA != "" && s.cert == "" {
		return nil, nil, usageErrorf("--tls-cert and --tls-key go together, and --client-ca needs them")
	}
	if s.cert != "" {
		files, err := serve.ReadTLS(s.cert, s.key, s.clientCA, failed)
		if err != nil {
			return nil, nil, usageErrorf("%w", err)
		}
		config = files.Config()
	}
	if s.opts.Webhook, err = s.webhook.read(failed); err != nil {
		return nil, nil, err
	}
	if err := s.checkListen(); err != nil {
		return nil, nil, err
	}
	switch s.audit {
	case "":
	case "-":
		s.opts.Audit = s.app.stdout
	default:
		f, err := os.OpenFile(s.audit, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, internalErrorf("open the audit log: %w", err)
		}
		s.opts.Audit, closeAudit = f, func() { f.Close() }
	}
	return config, closeAudit, nil
}

// trustProxy accepts names of clients from the header of a reverse proxy.
func (s *service) trustProxy(access *serve.Access) error {
	if s.user == "" && len(s.from) == 0 {
		return nil
	}
	if s.user == "" || len(s.from) == 0 {
		return usageErrorf("--proxy-user and --proxy-from go together")
	}
	var from []netip.Prefix
	for _, text := range s.from {
		one, err := netip.ParsePrefix(text)
		if addr, isAddr := netip.ParseAddr(text); isAddr == nil {
			one, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return usageErrorf("--proxy-from %q: want addresses such as 10.0.0.7 or 10.0.0.0/24", plain(text))
		}
		from = append(from, one.Masked())
	}
	return access.TrustProxy(s.user, from)
}

// checkListen refuses an address that other machines can reach without TLS and access control,
// unless --insecure is given.
func (s *service) checkListen() error {
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return usageErrorf("--listen %q: want HOST:PORT", s.listen)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() || s.insecure || s.cert != "" && s.access != "" {
		return nil
	}
	return usageErrorf("--listen %q is open to other machines\nGive --tls-cert, --tls-key and --access, or --insecure", s.listen)
}

// open opens the store. Only here memory: is a store.
func (s *service) open(ctx context.Context) (driver.Driver, error) {
	chosen, err := s.app.chosenStore()
	if err != nil {
		return nil, err
	}
	if strings.EqualFold(chosen.value, "memory:") {
		s.app.storeURL = "memory:"
		s.opts.History.Sole = true
		return memory.New(), nil
	}
	return s.app.open(ctx, stores.Open)
}

func (s *service) listener(ctx context.Context) (net.Listener, error) {
	// This detects vanished clients within about ten seconds.
	config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}
	l, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return nil, internalErrorf("%w", err)
	}
	return l, nil
}

// serve answers calls until ctx ends. It then waits for calls in progress.
func (s *service) serve(ctx context.Context, l net.Listener, handler *serve.Server) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: mostStreams},
		Handler: handler, ReadHeaderTimeout: headersWithin, IdleTimeout: idleFor, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // it would log errors of connections, which any client can cause
	}
	scheme := "http"
	if s.cert != "" {
		scheme = "https"
	}
	s.app.tell(onServe, "", 0, "serving %s at %s://%s", stores.Redact(s.app.storeURL), scheme, l.Addr())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return internalErrorf("%w", err)
	case <-ctx.Done():
	}
	handler.Drain()
	ending, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := server.Shutdown(ending); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return internalErrorf("%w", err)
	}
	server.Close()
	return nil
}

// logger returns a logger to stderr, as JSON with --json.
func (s *service) logger() *slog.Logger {
	if s.app.json {
		return slog.New(slog.NewJSONHandler(s.app.stderr, nil))
	}
	return slog.New(slog.NewTextHandler(s.app.stderr, nil))
}
