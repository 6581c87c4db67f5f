package httplock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/storeurl/transport"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// transportBy returns a transport for the protocols. With HTTP/2, all calls of a driver go to one
// instance over one connection, in order. So the release of a claim does not overtake the end of
// its wait.
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

// ways returns the protocols to try, the best first. Without TLS the sides cannot negotiate HTTP/2,
// so it is tried. A balancer in between may not support it.
func (d *service) ways() []*http.Protocols {
	var both, first http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	first.SetUnencryptedHTTP2(true)
	if strings.HasPrefix(d.base, "https:") {
		return []*http.Protocols{&both}
	}
	return []*http.Protocols{&first, &both}
}

const (
	// If an instance does not answer within reachAgain, another request is sent over another
	// connection, because a balancer may have an instance that answers. mostReaches bounds these
	// requests.
	reachAgain  = 700 * time.Millisecond
	mostReaches = 6
)

// A reached is a client with a connection to an instance that answers.
type reached struct {
	client    *http.Client
	abilities wire.Abilities
	err       error
	way       int // index in ways
}

// reach asks the service for its abilities, over several connections if necessary. The first answer
// counts.
func (d *service) reach(ctx context.Context) (reached, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ways, way := d.ways(), 0
	results := make(chan reached, mostReaches)
	begun, failed := 0, 0
	begin := func() {
		begun++
		r := reached{client: d.newClient(ways[way]), way: way}
		go func() {
			r.abilities, r.err = d.askFeatures(ctx, r.client)
			results <- r
		}()
	}
	begin()
	again := time.NewTicker(reachAgain)
	defer again.Stop()
	for {
		select {
		case r := <-results:
			failed++
			switch next := r.way + 1; {
			case r.err == nil, !errors.Is(r.err, errSilent):
				cancel()
				go discard(results, begun-failed)
				return r, r.err
			case ctx.Err() == nil && next < len(ways) && next > way && begun < mostReaches: // the protocol may not be supported
				way = next
				begin()
			case failed == begun:
				return r, r.err
			}
			r.client.CloseIdleConnections()
		case <-again.C:
			if begun < mostReaches {
				begin()
			}
		}
	}
}

// discard closes the connections of the n results that come too late.
func discard(results <-chan reached, n int) {
	for range n {
		(<-results).client.CloseIdleConnections()
	}
}

func (d *service) newClient(way *http.Protocols) *http.Client {
	return &http.Client{Transport: d.transportBy(way), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (d *service) askFeatures(ctx context.Context, client *http.Client) (a wire.Abilities, err error) {
	if err = d.do(ctx, client, patient, http.MethodGet, wire.Features, nil, &a); err != nil {
		return a, fmt.Errorf("httplock: ask what the service promises: %w", err)
	}
	if a.MaxWait <= 0 {
		return a, fmt.Errorf("%w: there is no such service at this address", errSilent)
	}
	return a, nil
}

// featuresOf returns the features of a driver on a service with these abilities.
func featuresOf(a wire.Abilities, noEvents bool) driver.Features {
	return driver.Features{
		Engine: "http", Fencing: a.Fencing, Shared: a.Shared, Fair: a.Fair, Wakes: true, Resumes: a.Resumes,
		Lingers: a.Lingers, Notes: a.Notes, Raises: a.Raises,
		Tells: a.Tells, Recalls: a.Recalls && a.Inspects && !noEvents, Keeps: a.Keeps, Weights: a.Weights, Limits: a.Limits && a.Inspects,
		MinTTL: wire.Duration(a.MinTTL), Step: max(wire.Duration(a.Step), time.Millisecond), SessionTTL: wire.Duration(a.SessionTTL),
	}
}

// tooOldAgain is how soon to repeat a call after an instance answered that it may be too old. An
// instance that was stopped answers so for seconds.
const tooOldAgain = 200 * time.Millisecond

// again makes a call that may be served twice. It repeats the call, over a connection to an
// instance that answers, while there is no answer. It also repeats the call while its instance does
// not know when it was sent.
func (d *service) again(ctx context.Context, attempt func(again bool) error) error {
	for again := false; ; {
		client := d.client.Load()
		err := attempt(again)
		r, answered := errors.AsType[*reply](err)
		switch tooOld := answered && r.Code == wire.CodeTooOld; {
		case ctx.Err() != nil, d.life.Err() != nil:
			return err
		case tooOld:
			if pause.For(ctx, tooOldAgain) != nil {
				return err
			}
		case errors.Is(err, links.ErrSilent):
			again = true
			d.reachAnew(ctx, client)
		default:
			return err
		}
	}
}

// reachAnew replaces a client whose connections are silent, unless another goroutine has done so.
// If it fails, the next attempt reports that.
func (d *service) reachAnew(ctx context.Context, silent *http.Client) {
	if d.reaching.Begin(ctx) != nil {
		return
	}
	defer d.reaching.End()
	if d.client.Load() != silent {
		return
	}
	if r, err := d.reach(ctx); err == nil {
		d.client.Store(r.client)
		silent.CloseIdleConnections()
	}
}
