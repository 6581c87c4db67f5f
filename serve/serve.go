// Package serve offers any driver's locks over HTTP and JSON, so that programs in every language
// share leases with Go programs. docs/serve.md explains the protocol. openapi.json, which the
// service serves, describes it. Package httplock is a client.
//
// A Server is an http.Handler without state that matters. Callers choose owners, and the engine has
// leases and places, so any number of instances over one engine serve the same claims. If the
// engine ties leases to a session (Features.Resumes is false, and its claims are no Forgetters), the
// instance has the session, and its end ends its leases. A Server renews nothing by itself: a lease
// that no client renews ends with its TTL.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve/page"
)

// Options configure a Server. The zero value suits most programs.
type Options struct {
	// MaxWait is the longest that one call waits for other holders. To wait longer, clients repeat
	// the call. 0: 30 seconds.
	MaxWait time.Duration
	// MaxBody is the maximum length of a request's body in bytes. 0: 16 KiB, enough for a name, an
	// owner and a note of the greatest lengths with every character escaped.
	MaxBody int64
	// Hosts are host names that clients on this machine may use, beside the names of its loopback.
	// Others are refused on connections over the loopback. So the page of an attacker, whose host
	// name leads to 127.0.0.1, cannot take locks. On other connections every host name is accepted.
	Hosts []string
	// Client identifies the caller, such as Access.Client. An error refuses the call with 401. nil:
	// everybody may do everything.
	Client func(r *http.Request) (*Client, error)
	// Audit gets a line of JSON for each call that changes something or was meant to: caller, call,
	// name, token and outcome. It has no whole owner. nil: there is no audit log.
	Audit io.Writer
	// Limits are the limits of this instance.
	Limits Limits
	// MetricLimits has /metrics show what is used of the limits that operators have set, by name.
	// Everybody who reads the metrics sees those names. At most 1,000 are shown.
	MetricLimits bool
	// History configures this instance's history.
	History HistoryOptions
	// Version is the program's version, for /metrics and for clients. "": it is not stated.
	Version string
	// Trace is called when a call begins, except for event streams. The call has a name such as
	// "acquire". It continues with the returned context, and end is called when it ends. Package
	// leaseholdotel has an implementation. nil: there is none.
	Trace func(r *http.Request, call string) (ctx context.Context, end func(Call))
	// Webhook is notified of leases that are lost or evicted, and of long waits. nil: there is
	// none.
	Webhook *Webhook
	// Log gets errors. nil: nothing is logged.
	Log *slog.Logger
}

// Defaults, and the longest call to the engine.
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
	claims  *claims // pointers, like hub, hide the owners in them from fmt
	gate    gate
	metrics *metrics
	watched watched
	webhook *webhook // nil: there is none
	audit   auditLog
	hub     *hub
	history *recorder // nil: there is no history
	shared  *sharedFigures
	began   time.Time
	pulse   pulse
	readiness
	lifetime
}

// An engine is the driver that a Server serves.
type engine struct {
	driver   driver.Driver
	operator driver.Operator // the driver; nil: it is no Operator
	checker  driver.Checker  // the driver; nil: it is no Checker
	features wire.Abilities
}

// A lifetime ends the work of a Server.
type lifetime struct {
	life     *life.Life      // ends with Close
	draining context.Context // ends when waiting calls must be repeated elsewhere
	drain    context.CancelFunc
}

// New returns a Server over d. It does no I/O. The caller must close the Server, and then d.
func New(d driver.Driver, opts *Options) (*Server, error) {
	if d == nil {
		return nil, errors.New("serve: no driver")
	}
	s := &Server{engine: engine{driver: d}, began: time.Now(), mux: http.NewServeMux(), claims: &claims{}, hub: &hub{}, shared: &sharedFigures{all: make(map[string]shareOfFigures)}, metrics: &metrics{}}
	s.metrics.init()
	s.watched.calls, s.watched.seconds, s.watched.asking = &s.metrics.storeCalls, &s.metrics.storeSeconds, make(chan struct{}, 1)
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
	s.life = life.New()
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
		go s.webhook.run(s.life) // Close waits for it within a bound
		s.life.Go(func() { s.observeWaits(s.life) })
	}
	s.life.Go(func() { s.claims.sweep(s.life, s.forget) })
	s.life.Go(func() { s.pulse.run(s.life) })
	s.hub.records()
	if s.history != nil && s.history.file != nil {
		go s.history.write(s.life) // Close waits for it within a bound
	}
	return s, nil
}

// complete checks the options and sets defaults.
func (s *Server) complete() error {
	o := &s.opts
	if o.MaxWait < 0 || o.MaxBody < 0 || o.Limits.Waiting < 0 || o.Limits.WaitingEach < 0 ||
		o.Limits.Streams < 0 || o.Limits.StreamsEach < 0 || !(o.Limits.Rate >= 0 && o.Limits.Rate <= math.MaxFloat64) {
		return errors.New("serve: MaxWait, MaxBody and Limits are finite, and not negative")
	}
	if o.Webhook != nil {
		if err := o.Webhook.check(); err != nil {
			return fmt.Errorf("serve: the webhook: %w", err)
		}
	}
	o.MaxWait, o.MaxBody = cmp.Or(o.MaxWait, defaultMaxWait), cmp.Or(o.MaxBody, defaultMaxBody)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return nil
}

func (s *Server) routes() {
	for path, call := range map[string]http.HandlerFunc{
		wire.Acquire: reads(s, s.acquire), wire.Renew: reads(s, s.renew), wire.Release: reads(s, s.release),
		wire.Note: reads(s, s.note), wire.Evict: reads(s, s.evict), wire.Fence: reads(s, s.fence),
		wire.Limit: reads(s, s.limit), wire.Reserve: reads(s, s.reserve), wire.Remove: reads(s, s.remove),
		wire.Reset: reads(s, s.reset), wire.Rehearse: reads(s, s.rehearse),
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

// queryFields are the fields of calls that accept any.
var queryFields = map[string][]string{wire.Show: {"name"}, wire.List: {"prefix", "limit", "after"}, wire.Events: {"prefix", "kind"},
	wire.History: {"name", "prefix", "kind", "since_ms", "until_ms", "limit", "after"}, wire.Overview: {"prefix"}}

// route serves a path for one method, and refuses others.
func (s *Server) route(method, path string, call http.HandlerFunc) {
	allowed := method
	if method == http.MethodGet {
		allowed += ", " + http.MethodHead // net/http serves it with GET
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

// Drain ends waiting calls and event streams. Callers are asked to repeat the call, and find their
// places kept, at another instance. From then on readyz fails. Other calls are served as before.
// Call Drain before http.Server.Shutdown.
func (s *Server) Drain() { s.drain() }

// Close is Drain, and ends what goes on beside calls. Call it when no calls are served any
// more, and close the driver after it. Leases that are held stay held.
func (s *Server) Close() error {
	s.life.End()
	s.life.Wait()
	s.webhook.close()
	s.history.close()
	return nil
}
