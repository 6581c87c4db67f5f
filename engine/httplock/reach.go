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

// ways are the protocols to speak, the better first. Without TLS there is no way to agree on HTTP/2, so it
// is tried: a balancer between may not know it.
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
	// An instance that does not answer within reachAgain is asked once more, over another connection: a balancer
	// may have one that answers. mostReaches is how many are asked at once.
	reachAgain  = 700 * time.Millisecond
	mostReaches = 6
)

// A reached is a client with a connection to an instance that answers.
type reached struct {
	client    *http.Client
	abilities wire.Abilities
	err       error
	way       int // of ways
}

// reach asks what the service promises, by several connections if need be: the first that is answered counts.
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
			case ctx.Err() == nil && next < len(ways) && next > way && begun < mostReaches: // it may not be spoken
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

// discard closes the connections of those that come too late.
func discard(results <-chan reached, n int) {
	for range n {
		(<-results).client.CloseIdleConnections()
	}
}

func (d *service) newClient(way *http.Protocols) *http.Client {
	return &http.Client{Transport: d.transportBy(way), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (d *service) askFeatures(ctx context.Context, client *http.Client) (a wire.Abilities, err error) {
	err = d.exchange(ctx, client, patient, func(ctx context.Context) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, d.base+wire.Features, nil)
	}, &a)
	if err != nil {
		return a, fmt.Errorf("httplock: ask what the service promises: %w", err)
	}
	if a.MaxWait <= 0 {
		return a, fmt.Errorf("%w: there is no such service at this address", errSilent)
	}
	return a, nil
}

// promised takes in what the service promises.
func (d *service) promised(a wire.Abilities) {
	d.features = driver.Features{
		Engine: "http", Fencing: a.Fencing, Shared: a.Shared, Fair: a.Fair, Wakes: true, Resumes: a.Resumes,
		Lingers: a.Lingers, Notes: a.Notes, Raises: a.Raises,
		Tells: a.Tells, Recalls: a.Recalls && a.Inspects && !d.opts.NoEvents, Keeps: a.Keeps, Weights: a.Weights, Limits: a.Limits && a.Inspects,
		MinTTL: wire.Duration(a.MinTTL), Step: max(wire.Duration(a.Step), time.Millisecond), SessionTTL: wire.Duration(a.SessionTTL),
	}
	d.inspects, d.bars, d.tellsOnce = a.Inspects, a.Bars, a.WantedOnce
}

// tooOldAgain is how long after an instance has said that a call may be too old it is made again: the instance stood still,
// and says so for seconds.
const tooOldAgain = 200 * time.Millisecond

// again makes a call that may be served twice, and makes it again, over a connection to an instance that answers,
// for as long as nobody answers it, and for as long as its instance does not know when it came.
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

// reachAnew replaces a client whose connections are condemned, unless somebody has done so. Should it fail, the
// next attempt tells.
func (d *service) reachAnew(ctx context.Context, silent *http.Client) {
	select {
	case d.reaching <- struct{}{}:
		defer func() { <-d.reaching }()
	case <-ctx.Done():
		return
	}
	if d.client.Load() != silent {
		return
	}
	if r, err := d.reach(ctx); err == nil {
		d.client.Store(r.client)
		silent.CloseIdleConnections()
	}
}
