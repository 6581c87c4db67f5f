package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Inspect returns the holders and waiters of one resource; a free one has none.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	if err := d.usable(ctx); err != nil {
		return driver.State{}, err
	}
	s, now := d.server, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.at(name, now)
	defer s.settle(name, r)
	return r.state(name, now), nil
}

// List returns, by name, the resources with holders or waiters whose names start with prefix.
func (d *Driver) List(ctx context.Context, prefix string) ([]driver.State, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	s, now := d.server, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []driver.State
	for name, r := range s.resources {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		r.expire(now)
		if st := r.state(name, now); len(st.Holders) > 0 || len(st.Waiters) > 0 {
			states = append(states, st)
		}
		s.settle(name, r)
	}
	slices.SortFunc(states, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	return states, nil
}

func (r *resource) state(name string, now time.Time) driver.State {
	st := driver.State{Resource: name}
	for _, h := range r.holds {
		st.Holders = append(st.Holders, h.describe(now))
		st.Fence = max(st.Fence, h.fence)
	}
	for _, p := range r.queue {
		st.Waiters = append(st.Waiters, driver.Waiter{
			Owner: p.req.Owner, Mode: p.req.Mode, Note: p.req.Note, Waited: now.Sub(p.since),
		})
	}
	return st
}
