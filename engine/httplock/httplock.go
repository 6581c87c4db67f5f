// Package httplock is Leasehold's driver for the HTTP service of package serve and "leasehold
// serve". A program that uses it needs access to one port of the service, but not to the engine,
// and no client of the engine. The driver promises what the engine behind the service promises.
// See docs/serve.md.
//
// A waiting claim keeps one call open at the service, which answers when it is granted. One
// event stream per driver notifies holders of leases that have ended early.
package httplock

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// Options configure a Driver. The zero value suits most programs.
type Options struct {
	// Token returns the bearer token of calls. It is called for each of them, so it may read a
	// file that changes. nil: no token.
	Token func() (string, error)
	// TLS is for https; nil: the system's certificates.
	TLS *tls.Config
	// Events limits the stream of events to names that begin with it. The stream reports all of
	// them, including those that the driver does not hold. Empty: all names.
	Events string
	// NoEvents does without the stream of events: holders learn of an early end from their next
	// renewal, as they do while the service refuses another stream.
	NoEvents bool

	// Headers adds headers to each call, such as the trace in its context, which
	// leaseholdotel.Inject adds. nil: none are added.
	Headers func(ctx context.Context, h http.Header)

	files *storeurl.TLS // from a URL, instead of TLS; nil: TLS applies
}

// ErrDenied: the service does not know the caller, or the caller lacks the right.
var ErrDenied = fmt.Errorf("httplock: denied by the service: %w", driver.ErrDenied)

// Bounds of connections: how long connecting may take, and how many stay open unused.
const (
	dialWithin = 5 * time.Second
	mostIdle   = 16
	idleFor    = 20 * time.Second
)

// A service is a driver.Driver and a driver.BatchRenewer. The leases of its claims outlive it.
type service struct {
	base     string
	opts     Options
	links    links.Links // its connections
	client   atomic.Pointer[http.Client]
	reaching onecall.Gate // passed by those who replace the client

	abilities wire.Abilities // of the service, as it said first
	features  driver.Features

	life  *life.Life // ends when the driver is closed
	watch watch
}

// Connect asks the service at base, such as "https://locks.internal:7400", for its features, and
// returns a driver on it. The driver is a BatchRenewer, a Checker and, if the engine behind the
// service is one, an Operator. The caller must close it.
func Connect(ctx context.Context, base string, opts *Options) (driver.Driver, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("httplock: the address is http://HOST:PORT or https://HOST:PORT") // which it may repeat secrets of
	}
	d := &service{base: strings.TrimSuffix(u.String(), "/"), reaching: onecall.New(), life: life.New()}
	if opts != nil {
		d.opts = *opts
	}
	d.watch.init()
	r, err := d.reach(ctx)
	if err != nil {
		d.Close()
		return nil, err
	}
	d.client.Store(r.client)
	d.abilities, d.features = r.abilities, featuresOf(r.abilities, d.opts.NoEvents)
	if d.abilities.Inspects {
		return operator{d}, nil
	}
	return d, nil
}

// RenewAll implements [driver.BatchRenewer]: by a call each. Those that hang, as one name's may at
// the engine behind the service, cost the others no time.
func (d *service) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	several.Each(ctx, len(renewals), mostIdle, several.Slow, func(i int) { renewals[i].Answer(renewals[i].Claim.Renew(ctx, renewals[i].TTL)) })
}

// Features implements driver.Driver. It returns the features of the engine behind the service, with
// the name http.
func (d *service) Features() driver.Features { return d.features }

// Close implements driver.Driver. It returns when all goroutines of the driver have ended.
func (d *service) Close() error {
	d.life.End()
	d.life.Wait()
	if client := d.client.Load(); client != nil {
		client.CloseIdleConnections()
	}
	return nil
}

// Claim implements driver.Driver.
func (d *service) Claim(req driver.Request) (driver.Claim, error) {
	f := d.features
	if req.Mode == driver.Shared && !f.Shared || f.SessionTTL > 0 && req.TTL != f.SessionTTL {
		return nil, driver.ErrUnsupported
	}
	return &claim{d: d, req: req, caller: rand.Text()}, nil
}
