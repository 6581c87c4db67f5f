package memcachelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
)

// DefaultPrefix precedes each name.
const DefaultPrefix = "lock:"

const (
	// step is the resolution of memcached's clock.
	step = time.Second
	// minTTL is long enough for renewals, which are due every two thirds of a second.
	minTTL = 2 * time.Second
	// early is how much too early memcached may expire an item. Its clock is the second of its last
	// tick, so an item that is stored late in a second loses up to a second. The ticks come
	// slightly later each time, so about every quarter of an hour its clock skips a second.
	early = 2 * time.Second
	// maxTTL: memcached takes a life above 30 days for an instant, by a clock that is not ours.
	// Source: its protocol.txt.
	maxTTL = 30*24*time.Hour - early
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix precedes each name in the key; "": DefaultPrefix. All processes must use the same.
	// It has at most 100 bytes, without blanks and control characters.
	Prefix string
	// NoPrefix uses names as keys without a prefix; Prefix must be "".
	NoPrefix bool
	// Dial opens connections, for example with TLS; nil: a net.Dialer.
	Dial dialFunc
}

// A Driver serves claims on memcached servers. It is safe for concurrent use.
type Driver struct {
	prefix  string
	servers []*server
	turns   *turns
}

// New returns a Driver on the servers at these addresses, HOST or HOST:PORT. It does no I/O.
// Each name belongs to one server, chosen by its key and the addresses as written here. So all
// processes must spell them alike, in any order. If a server is down, no other replaces it: its
// locks are unavailable.
func New(addresses []string, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	switch {
	case o.NoPrefix && o.Prefix != "":
		return nil, errors.New("memcachelock: Prefix and NoPrefix exclude each other")
	case o.Prefix == "" && !o.NoPrefix:
		o.Prefix = DefaultPrefix
	}
	if err := checkPrefix(o.Prefix); err != nil {
		return nil, err
	}
	all, err := normal(addresses)
	if err != nil {
		return nil, err
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	d := &Driver{prefix: o.Prefix, turns: newTurns()}
	for _, address := range all {
		s := &server{address: address, dial: o.Dial, probe: o.Prefix + escape + "probe", room: make(chan struct{}, maxConns)}
		s.links.Condemn = s.condemn
		d.servers = append(d.servers, s)
	}
	return d, nil
}

var features = driver.Features{Engine: "memcached", Resumes: true, Lingers: true, MinTTL: minTTL, Step: step}

// Features implements [driver.Driver]: exclusive leases that other processes may resume and that
// may linger.
func (d *Driver) Features() driver.Features { return features }

// Close closes the driver's connections. Later calls return [driver.ErrClosed]. Leases stay
// held.
func (d *Driver) Close() error {
	for _, s := range d.servers {
		s.close()
	}
	return nil
}

// Claim implements [driver.Driver]. It returns ErrUnsupported for a shared lease, and for an
// owner or a TTL that cannot be stored.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	switch {
	case req.Mode != driver.Exclusive:
		return nil, fmt.Errorf("memcachelock: a shared lease is %w", driver.ErrUnsupported)
	case req.Owner == "" || !utf8.ValidString(req.Owner):
		return nil, fmt.Errorf("memcachelock: an owner that is empty or no UTF-8 is %w", driver.ErrUnsupported)
	}
	if err := checkTTL(req.TTL); err != nil {
		return nil, err
	}
	key := keyOf(d.prefix, req.Resource)
	return &claim{req: req, key: key, marks: markOf(d.prefix, req.Resource), server: pick(d.servers, key), turns: d.turns}, nil
}

// maxRenewals is how many renewals of one RenewAll are sent to a server at once. Renewals that take
// long do not count.
const maxRenewals = maxConns / 2

// RenewAll implements [driver.BatchRenewer] with one call per lease, to all servers at once. A
// server that does not answer does not delay the leases of others.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	byServer := make(map[*server][]*driver.Renewal, len(d.servers))
	for i := range renewals {
		on := renewals[i].Claim.(*claim).server
		byServer[on] = append(byServer[on], &renewals[i])
	}
	groups := slices.Collect(maps.Values(byServer))
	several.Bounded(len(groups), len(groups), func(i int) {
		some := groups[i]
		several.Each(ctx, len(some), maxRenewals, several.Slow, func(i int) { some[i].Answer(some[i].Claim.Renew(ctx, some[i].TTL)) })
	})
}

func checkTTL(ttl time.Duration) error {
	if ttl > maxTTL {
		return fmt.Errorf("memcachelock: a TTL of %v, above the %v that memcached counts, is %w", ttl, maxTTL, driver.ErrUnsupported)
	}
	return nil
}

// granted returns a TTL in whole seconds, as it is granted. Its item must last for early longer.
func granted(ttl time.Duration) time.Duration { return (ttl + step - 1) / step * step }
