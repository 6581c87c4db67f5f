package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// Inspect returns the holders and waiters of one resource; a free one has none.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	r, now, err := d.begin(ctx, name)
	if err != nil {
		return driver.State{}, err
	}
	defer d.end(name, r)
	return r.State(now, name), nil
}

// List returns, by name, the resources with holders or waiters whose names start with prefix.
func (d *Driver) List(ctx context.Context, prefix string) ([]driver.State, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	s := d.server
	s.lock()
	defer s.mu.Unlock()
	var states []driver.State
	for name, r := range s.resources {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		r.expire(&s.now)
		if st := r.State(&s.now, name); len(st.Holders) > 0 || len(st.Waiters) > 0 {
			states = append(states, st)
		}
		s.settle(name, r)
	}
	slices.SortFunc(states, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	return states, nil
}
