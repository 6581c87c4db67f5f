package memory

import (
	"context"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// Inspect implements [driver.Operator].
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	r, now, err := d.begin(ctx, name)
	if err != nil {
		return driver.State{}, err
	}
	defer d.end(name, r)
	return r.State(now, name), nil
}

// List implements [driver.Operator], sorted by name.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	if err := d.usable(ctx); err != nil {
		return nil, "", err
	}
	s := d.server
	s.lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.resources {
		if name > after && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if len(states) == limit {
			return states, states[limit-1].Resource, nil
		}
		r := s.resources[name]
		r.expire(&s.now)
		if st := r.State(&s.now, name); len(st.Holders) > 0 || len(st.Waiters) > 0 {
			states = append(states, st)
		}
		s.settle(name, r)
	}
	return states, "", nil
}
