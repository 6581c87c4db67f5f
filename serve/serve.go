// Package serve puts HTTP and JSON in front of any driver, so that programs in every language
// take the same leases as the Go programs beside them. docs/serve.md tells the protocol, and
// openapi.json, which the service hands out, describes it; package httplock speaks it.
//
// A Server is an http.Handler with no state that matters: owners are the callers', leases and
// places are the engine's, and any number of instances over one engine serve the same claims.
// Only where the engine ties leases to a session (Features.Resumes is false) the instance has
// the session, and its end is the end of its leases. It never renews by itself: what no client
// renews ends with its TTL.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve/page"
)

// Options are what a Server may be told. The zero value is what most need.
type Options struct {
	// MaxWait is the longest that one call waits for other holders; whoever wants to wait
	// longer calls again. 0: 30 seconds.
	MaxWait time.Duration
	// MaxBody is the most bytes of a request's body. 0: 16 KiB, which is a name, an owner and a
	// note of the greatest lengths, with every character of them escaped.
	MaxBody int64
	// Hosts are the names that clients may call the server by, beside those of this machine's
	// loopback, on connections that come from there: a page of somebody else, whose name leads to
	// 127.0.0.1, must not take locks. On other connections every name is taken.
	Hosts []string
	// Client tells who calls, such as Access.Client does. An error refuses the call with 401. nil:
	// everybody may do everything.
	Client func(r *http.Request) (*Client, error)
	// Audit gets a line of JSON for each call that changes something, or was to: who, what, which
	// name, which token, with what outcome. No owner is in it whole. nil: there is no such log.
	Audit io.Writer
	// Limits are this instance's.
	Limits Limits
	// History is what is kept of what this instance sees.
	History HistoryOptions
	// Version is that of the program, for /metrics and for those who ask who they are; "": none is told.
	Version string
	// Trace is called when a call begins, named such as "acquire", but for streams of events. The call goes on with the
	// context that it returns, and calls end when it is over. package leaseholdotel has one. nil: nobody is told.
	Trace func(r *http.Request, call string) (ctx context.Context, end func(Call))
	// Webhook is told of leases that are lost or evicted, and of long waits. nil: nobody is.
	Webhook *Webhook
	// Log gets what goes wrong. nil: nothing is logged.
	Log *slog.Logger
}

// Defaults, and the lengths of calls to the engine.
const (
	defaultMaxWait = 30 * time.Second
	defaultMaxBody = 16 << 10
	// callBound is the longest that one call to the engine may take, as in package leasehold.
	callBound = 5 * time.Second
)

// A Server is the service over one driver.
type Server struct {
	engine
	opts    Options
	mux     *http.ServeMux
	claims  *claims // a pointer, as hub: they have owners, which fmt does not find there
	gate    gate
	metrics *metrics
	watched watched
	webhook *webhook // nil: nobody is told
	audit   auditLog
	hub     *hub
	history *recorder // nil: none is kept
	shared  *sharedFigures
	began   time.Time
	pulse   pulse
	readiness
	lifetime
}

// An engine is what a Server is over.
type engine struct {
	driver   driver.Driver
	operator driver.Operator // of the driver; nil: it is none
	checker  driver.Checker  // as operator
	features wire.Abilities
}

// A lifetime is that of a Server.
type lifetime struct {
	life     context.Context // ends with Close
	draining context.Context // ends when waiting calls are to be repeated elsewhere
	drain    context.CancelFunc
	stop     context.CancelFunc
	working  sync.WaitGroup // what goes on beside calls
}

// New returns a Server over d, which stays the caller's to close, after the Server. It does no
// I/O. The caller calls Close.
func New(d driver.Driver, opts *Options) (*Server, error) {
	if d == nil {
		return nil, errors.New("serve: no driver")
	}
	s := &Server{engine: engine{driver: d}, began: time.Now(), mux: http.NewServeMux(), claims: &claims{}, hub: &hub{}, shared: &sharedFigures{}, metrics: &metrics{}}
	s.metrics.init()
	s.watched.calls, s.watched.seconds = &s.metrics.storeCalls, &s.metrics.storeSeconds
	if o, ok := d.(driver.Operator); ok {
		s.operator = watchedOperator{o, &s.watched}
	}
	if c, ok := d.(driver.Checker); ok {
		s.checker = watchedChecker{c, &s.watched}
	}
	if opts != nil {
		s.opts = *opts
	}
	if err := s.complete(); err != nil {
		return nil, err
	}
	s.life, s.stop = context.WithCancel(context.Background())
	s.draining, s.drain = context.WithCancel(s.life)
	s.claims.init()
	s.gate.init(s.opts.Limits)
	s.audit.w = s.opts.Audit
	s.features = s.abilities()
	s.history = newRecorder(s.opts.History, s.operator != nil, s.opts.Log)
	s.hub.init(s)
	s.pulse.init(boottime.Machine())
	s.routes()
	if s.opts.Webhook != nil {
		s.webhook = newWebhook(s)
		s.working.Go(func() { s.webhook.run(s.life) })
		s.working.Go(func() { s.observeWaits(s.life) })
	}
	s.working.Go(func() { s.claims.sweep(s.life, s.forget) })
	s.working.Go(func() { s.pulse.run(s.life) })
	s.hub.records()
	if s.history != nil && s.history.file != nil {
		go s.history.write(s.life) // Close waits for it, but not for ever
	}
	return s, nil
}

// complete checks the options and sets what is not said.
func (s *Server) complete() error {
	o := &s.opts
	if o.MaxWait < 0 || o.MaxBody < 0 || o.Limits.Waiting < 0 || o.Limits.WaitingEach < 0 ||
		o.Limits.Streams < 0 || o.Limits.StreamsEach < 0 || o.Limits.Rate < 0 {
		return errors.New("serve: MaxWait, MaxBody and Limits are not negative")
	}
	if o.Webhook != nil {
		if err := o.Webhook.check(); err != nil {
			return fmt.Errorf("serve: the webhook: %w", err)
		}
	}
	if o.MaxWait == 0 {
		o.MaxWait = defaultMaxWait
	}
	if o.MaxBody == 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

func (s *Server) routes() {
	for path, call := range map[string]http.HandlerFunc{
		wire.Acquire: s.acquire, wire.Renew: s.renew, wire.Release: s.release,
		wire.Note: s.note, wire.Evict: s.evict, wire.Fence: s.fence, wire.Rehearse: s.rehearse,
		wire.Reserve: s.reserve, wire.Remove: s.remove, wire.Reset: s.reset,
	} {
		s.route(http.MethodPost, path, call)
	}
	for path, call := range map[string]http.HandlerFunc{
		wire.History: s.showHistory, wire.Overview: s.overview, wire.Me: s.me,
		wire.Show: s.show, wire.List: s.list, wire.Features: s.showFeatures, wire.Events: s.events, wire.Check: s.check,
		"/openapi.json": s.describe, "/healthz": s.healthy, "/readyz": s.ready, "/metrics": s.showMetrics,
	} {
		s.route(http.MethodGet, path, call)
	}
	page.Register(s.mux)
	s.mux.HandleFunc("/v1/", s.notFound)
}

// queryFields are those that a call takes. Others take none.
var queryFields = map[string][]string{wire.Show: {"name"}, wire.List: {"prefix", "limit", "after"}, wire.Events: {"prefix", "kind"},
	wire.History: {"name", "prefix", "kind", "since_ms", "limit", "after"}, wire.Overview: {"prefix"}}

// route serves a path by that method, and refuses others.
func (s *Server) route(method, path string, call http.HandlerFunc) {
	allowed := method
	if method == http.MethodGet {
		allowed += ", " + http.MethodHead // which net/http serves by GET
	}
	s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		s.refuse(w, http.StatusMethodNotAllowed, wire.CodeMethod, errors.New("this path is for "+allowed))
	})
	s.mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(path, "/v1/") {
			if err := checkQuery(r.URL.RawQuery, queryFields[path]); err != nil {
				s.invalid(w, err)
				return
			}
		}
		call(w, r)
	})
}

// Drain ends waiting calls and event streams: who waits is told to repeat the call, and finds
// its place kept, at another instance. readyz says no from then on. Other calls are served as
// ever. Call it before http.Server.Shutdown.
func (s *Server) Drain() { s.drain() }

// Close is Drain, and ends what goes on beside calls. Call it when no calls are served any
// more, and close the driver after it. Leases that are held stay held.
func (s *Server) Close() error {
	s.stop()
	s.working.Wait()
	s.history.close()
	return nil
}
