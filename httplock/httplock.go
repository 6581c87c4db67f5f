// Package httplock is Leasehold's driver for the HTTP service, which package serve and
// "leasehold serve" offer: a program that uses it needs no way to the engine but one port, and
// no client of the engine. What the engine behind the service promises is what the driver
// promises. See docs/serve.md.
//
// A claim that waits has a call open at the service, which answers when it is granted; one
// stream of events for each driver tells holders that their leases have ended early.
package httplock

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/transport"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// Options are what a Driver may be told. The zero value is what most need.
type Options struct {
	// Token returns the bearer token that calls carry. It is called for each, so that it may
	// read a file that changes. nil: calls carry none.
	Token func() (string, error)
	// TLS is for https; nil: the system's certificates.
	TLS *tls.Config
	// Events is what the names begin with whose ends the driver is told of: it hears of all of
	// them, also of those that it does not hold. Empty: all names.
	Events string
	// NoEvents does without the stream of events: a holder hears of its end from its next
	// renewal.
	NoEvents bool

	files *storeurl.TLS // in place of TLS, from the files of a URL; nil: TLS counts
}

// ErrDenied: the service does not know the caller, or grants it no right to the call.
var ErrDenied = fmt.Errorf("httplock: denied by the service: %w", driver.ErrDenied)

// How long a connection may take to be made, and how many stay open unused.
const (
	dialWithin = 5 * time.Second
	mostIdle   = 16
	idleFor    = 20 * time.Second
)

// A service is a driver.Driver that is a driver.BatchRenewer. Its claims' leases outlive it.
type service struct {
	base     string
	opts     Options
	client   *http.Client
	links    links.Links // its connections
	features driver.Features
	lingers  bool
	inspects bool

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu; no task begins any more
	watch  watch
}

// Connect asks the service at base, such as "https://locks.internal:7400", what it promises,
// and returns a driver on it, with the optional interfaces of the engine behind the service but
// for Identifier; it is a BatchRenewer, a Checker and a Rehearser. The caller calls Close.
func Connect(ctx context.Context, base string, opts *Options) (driver.Driver, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("httplock: the address is http://HOST:PORT or https://HOST:PORT") // which it may repeat secrets of
	}
	d := &service{base: strings.TrimSuffix(u.String(), "/")}
	if opts != nil {
		d.opts = *opts
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.watch.init()
	a, err := d.connect(ctx)
	if err != nil {
		d.Close()
		return nil, err
	}
	return d.able(a), nil
}

// RenewAll implements [driver.BatchRenewer]: by a call each. Those that hang, as one name's may at the engine behind the
// service, cost the others no time.
func (d *service) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	several.Each(len(renewals), mostIdle, func(i int) { renewals[i].Answer(renewals[i].Claim.Renew(ctx, renewals[i].TTL)) })
}

// able is the driver with the interfaces that the engine serves. Those that have one have the
// former, too, as far as engines are known.
func (d *service) able(a wire.Abilities) driver.Driver {
	shows := inspector{d}
	evicts := evictor{shows}
	switch {
	case a.Inspects && a.Evicts && a.Raises:
		return raiser{evicts}
	case a.Inspects && a.Evicts:
		return evicts
	case a.Inspects:
		return shows
	}
	return d
}

// transportBy speaks HTTP/2 if it can: all calls of a driver then go to one instance, in one
// connection and in order, so that the release of a claim does not overtake the end of its wait.
func (d *service) transportBy(protocols *http.Protocols) http.RoundTripper {
	if d.opts.files == nil {
		return d.transportOver(d.opts.TLS, protocols)
	}
	return transport.New(d.opts.files.Changed, func() http.RoundTripper { return d.transportOver(d.opts.files.Config(), protocols) })
}

func (d *service) transportOver(config *tls.Config, protocols *http.Protocols) *http.Transport {
	dialer := &net.Dialer{Timeout: dialWithin, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: d.links.Dialer(dialer.DialContext), TLSClientConfig: config, TLSHandshakeTimeout: dialWithin,
		MaxIdleConns: mostIdle, MaxIdleConnsPerHost: mostIdle, IdleConnTimeout: idleFor, Protocols: protocols,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
	}
}

// connect asks what the service promises. Without TLS there is no way to agree on HTTP/2, so it
// is tried first: a balancer between may not know it.
func (d *service) connect(ctx context.Context) (a wire.Abilities, err error) {
	var both, first http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	first.SetUnencryptedHTTP2(true)
	ways := []*http.Protocols{&first, &both}
	if strings.HasPrefix(d.base, "https:") {
		ways = ways[1:]
	}
	for _, way := range ways {
		d.client = &http.Client{Transport: d.transportBy(way), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		if a, err = d.askFeatures(ctx); errors.Is(err, links.ErrSilent) { // this instance hangs: not for the way it is asked, most likely
			a, err = d.askFeatures(ctx)
		}
		if err == nil || !errors.Is(err, errSilent) || ctx.Err() != nil {
			return a, err
		}
		d.client.CloseIdleConnections()
	}
	return a, err
}

func (d *service) askFeatures(ctx context.Context) (a wire.Abilities, err error) {
	err = d.do(ctx, d.links.Begin, func(ctx context.Context) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, d.base+wire.Features, nil)
	}, &a)
	if err != nil {
		return a, fmt.Errorf("httplock: ask what the service promises: %w", err)
	}
	if a.MaxWait <= 0 {
		return a, fmt.Errorf("%w: there is no such service at this address", errSilent)
	}
	d.features = driver.Features{
		Engine: "http", Fencing: a.Fencing, Shared: a.Shared, Fair: a.Fair, Wakes: true, Resumes: a.Resumes,
		MinTTL: wire.Duration(a.MinTTL), Step: max(wire.Duration(a.Step), time.Millisecond), SessionTTL: wire.Duration(a.SessionTTL),
	}
	d.lingers, d.inspects = a.Lingers, a.Inspects
	return a, nil
}

// Features implements driver.Driver: those of the engine behind the service, as it told them, by the name of http.
func (d *service) Features() driver.Features { return d.features }

// Close implements driver.Driver. It returns when nothing of the driver is left.
func (d *service) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
	d.tasks.Wait()
	d.client.CloseIdleConnections()
	return nil
}

// start runs task in a goroutine that Close waits for; false after Close.
func (d *service) start(task func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.tasks.Go(task)
	}
	return !d.closed
}

// Claim implements driver.Driver.
func (d *service) Claim(req driver.Request) (driver.Claim, error) {
	f := d.features
	if req.Mode == driver.Shared && !f.Shared || f.SessionTTL > 0 && req.TTL != f.SessionTTL {
		return nil, driver.ErrUnsupported
	}
	c := &claim{d: d, req: req, caller: rand.Text()}
	if d.lingers {
		return lingerer{c}, nil
	}
	return c, nil
}
