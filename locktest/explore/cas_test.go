package explore_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestRecord explores internal/record behind a store that replaces a value only if it is
// unchanged, over a network that loses answers.
func TestRecord(t *testing.T) {
	explore.Run(t, explore.Harness{Name: "record", For: time.Second / 2, Scenarios: unlessLong("try"), Known: []string{
		// Who may hold beside the one before it is granted first: no fault.
		"shared; c3 calls Acquire 1 = late",
		"readers; p1 hears of a turn 2 = late",
	}, New: func(w *explore.World) func(*explore.Process) driver.Driver {
		s := &store{values: make(map[string]version)}
		w.OnFlush(s.flush)
		w.OnState(s.state)
		w.OnClock(func(offset time.Duration) { s.offset = offset })
		return func(p *explore.Process) driver.Driver {
			d := &casDriver{process: p, store: s, news: p.Line(func() {}), changed: make(chan struct{})}
			s.drivers = append(s.drivers, d)
			return d
		}
	}})
}

// unlessLong is the scenarios for make test, which has less time than make explore.
func unlessLong(names ...string) []string {
	if long() {
		return nil
	}
	return names
}

func long() bool { return flag.Lookup("explore.for").Value.String() != "0s" }

// errChanged: nothing was written.
var errChanged = errors.New("somebody else has written")

// A store keeps values. The explorer asks it for one request at a time.
type store struct {
	values  map[string]version
	last    int           // version
	offset  time.Duration // of its clock
	drivers []*casDriver  // that are told of each change
}

type version struct {
	value   []byte
	version int
}

type item struct {
	version
	now record.Instant
	err error
}

func (i item) String() string {
	if i.err != nil {
		return i.err.Error()
	}
	return fmt.Sprintf("version %d: %s", i.version.version, i.value)
}

func (s *store) read(name string) item {
	return item{s.values[name], record.Instant(time.Now().Add(s.offset).UnixMicro()), nil}
}

// state is what nobody has to ask for.
func (s *store) state(name string) driver.State {
	i := s.read(name)
	r, _ := record.Decode(i.value)
	r.DropOver(&i.now)
	return r.State(&i.now, name)
}

func (s *store) write(name string, value []byte, was int) any {
	if s.values[name].version != was {
		return item{err: errChanged}
	}
	s.last++
	s.values[name] = version{value, s.last}
	if r, err := record.Decode(value); err == nil {
		for range r.Next { // somebody may hold now
			s.tell()
			break
		}
	}
	return item{version: s.values[name]}
}

// tell tells all processes that somebody may hold.
func (s *store) tell() {
	for _, d := range s.drivers {
		d.news.Push("hears of a turn", d.wake)
	}
}

func (s *store) flush() {
	s.last++
	for name := range s.values {
		s.values[name] = version{nil, s.last}
	}
}

// A casDriver keeps records in a store.
type casDriver struct {
	process *explore.Process
	store   *store
	news    *explore.Line

	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed when the store has told of a change
}

// wake has all who wait look again.
func (d *casDriver) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.changed)
	d.changed = make(chan struct{})
}

// next is closed at the next change.
func (d *casDriver) next() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

func (d *casDriver) Features() driver.Features {
	return driver.Features{Fencing: true, Shared: true, Weights: true, Limits: true, Fair: true, Wakes: true, Resumes: true, MinTTL: 10 * time.Millisecond}
}

func (d *casDriver) Close() error { return nil }

func (d *casDriver) Claim(req driver.Request) (driver.Claim, error) {
	return &casClaim{d: d, req: req, unsettled: -1}, nil
}

func (d *casDriver) call(ctx context.Context, what string, serve func() any) (item, error) {
	a, err := d.process.Call(ctx, what, "", serve)
	if err != nil {
		return item{}, err
	}
	return a.(item), a.(item).err
}

// A casClaim's write whose answer did not come may still come late. It can take effect while the
// store has the version that it was made for, and so each later call writes, until the version
// is another.
type casClaim struct {
	d         *casDriver
	req       driver.Request
	unsettled int // the version that a write without an answer was for; -1: none is open
}

// change changes the record by f, which says whether it did.
func (c *casClaim) change(ctx context.Context, f func(r *record.Record, at *record.Instant) (changed bool)) error {
	for {
		i, err := c.d.call(ctx, "read", func() any { return c.d.store.read(c.req.Resource) })
		if err != nil {
			return err
		}
		r, err := record.Decode(i.value)
		if err != nil {
			return err
		}
		r.DropOver(&i.now)
		if !f(&r, &i.now) && c.unsettled < i.version.version {
			c.unsettled = -1
			return nil
		}
		value := r.Encode()
		_, err = c.d.call(ctx, "write", func() any { return c.d.store.write(c.req.Resource, value, i.version.version) })
		switch {
		case err == nil:
			c.unsettled = -1
			return nil
		case !errors.Is(err, errChanged):
			c.unsettled = i.version.version
			return err
		}
	}
}

func (c *casClaim) Try(ctx context.Context) (g driver.Grant, err error) {
	var a record.Answer
	var busy *driver.Busy
	wake := c.d.next()
	err = c.change(ctx, func(r *record.Record, at *record.Instant) (changed bool) {
		var place time.Duration
		if c.req.Queue {
			place = 3 * time.Second
		}
		if a, changed = r.Try(at, &c.req, place, uint64(*at)); !a.Granted {
			busy = &driver.Busy{Wake: wake, Retry: min(a.Until, time.Second)}
		}
		return changed
	})
	switch {
	case err != nil:
		return g, err
	case a.Heavy:
		return g, driver.ErrTooHeavy
	case !a.Granted:
		return g, busy
	}
	return driver.Grant{TTL: c.req.TTL, Fence: a.Fence}, nil
}

func (c *casClaim) Renew(ctx context.Context, ttl time.Duration) (g driver.Grant, err error) {
	var lost error
	err = c.change(ctx, func(r *record.Record, at *record.Instant) bool {
		g.Fence, lost = r.Renew(at, c.req.Owner, ttl)
		return lost == nil
	})
	if err != nil {
		return driver.Grant{}, err
	}
	g.TTL = ttl
	return g, lost
}

func (*casClaim) Note(context.Context, string) error { return driver.ErrUnsupported }

func (c *casClaim) Release(ctx context.Context, _ driver.End) error {
	var lost error
	err := c.change(ctx, func(r *record.Record, _ *record.Instant) bool {
		lost = r.Release(c.req.Owner)
		return lost == nil
	})
	if err != nil {
		return err
	}
	return lost
}

func (d *casDriver) Inspect(ctx context.Context, name string) (driver.State, error) {
	i, err := d.call(ctx, "read", func() any { return d.store.read(name) })
	if err != nil {
		return driver.State{}, err
	}
	r, err := record.Decode(i.value)
	r.DropOver(&i.now)
	return r.State(&i.now, name), err
}

func (d *casDriver) List(context.Context, string, string, int) ([]driver.State, string, error) {
	return nil, "", driver.ErrUnsupported
}

func (*casDriver) RaiseFence(context.Context, string, uint64) error { return driver.ErrUnsupported }

func (d *casDriver) SetLimit(ctx context.Context, name string, limit int) error {
	c := &casClaim{d: d, req: driver.Request{Resource: name}, unsettled: -1}
	return c.change(ctx, func(r *record.Record, _ *record.Instant) bool {
		r.Limit = limit
		return true
	})
}

func (d *casDriver) Evict(ctx context.Context, name, owner, reason string) error {
	var lost error
	c := &casClaim{d: d, req: driver.Request{Resource: name}, unsettled: -1}
	err := c.change(ctx, func(r *record.Record, at *record.Instant) bool {
		lost = r.Evict(owner, reason, uint64(*at))
		return lost == nil
	})
	return cmp.Or(err, lost)
}
