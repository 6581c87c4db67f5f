package caslock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// Inspect implements [driver.Operator]. It shows the lease of a dead holder until this process
// has watched it for its TTL. It shows the TTL of a lease that this process made, or whose last
// renewal it has seen.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	ctx, leave, err := d.enter(ctx)
	if err != nil {
		return driver.State{Resource: name}, err
	}
	defer leave()
	v, _, err := d.current(ctx, d.resource(name), true)
	if err != nil {
		return driver.State{Resource: name}, err
	}
	st := v.State(&v.clock, name)
	return st, d.showBeside(ctx, &v, &st)
}

// showBeside adds the waiters with places beside the record.
func (d *Driver) showBeside(ctx context.Context, v *view, st *driver.State) error {
	if d.crowd == nil || v.Beside == record.Nobody {
		return nil
	}
	l, err := d.crowd.look(ctx, st.Resource)
	for c := range l.alive {
		st.Waiters = append(st.Waiters, c.Waiter(&v.clock))
	}
	return err
}

// List implements [driver.Operator], with the pages of the store.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	ctx, leave, err := d.enter(ctx)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	items, next, err := d.store.List(ctx, prefix, after, limit)
	if err != nil {
		return nil, "", failed(ctx, err)
	}
	var damaged []error
	for _, i := range items {
		err := i.Err
		if err == nil && i.Value != nil {
			err = d.listed(ctx, i.Item, &states)
		}
		switch {
		case err == nil:
		case errors.Is(err, driver.ErrCorrupt):
			damaged = append(damaged, fmt.Errorf("%q: %w", i.Name, err))
		default:
			return nil, "", failed(ctx, err)
		}
	}
	slices.SortFunc(states, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	states = slices.CompactFunc(states, func(a, b driver.State) bool { return a.Resource == b.Resource })
	return states, next, errors.Join(damaged...)
}

// listed appends the state of an item to states, if it is in use.
func (d *Driver) listed(ctx context.Context, i Item, states *[]driver.State) error {
	r, err := d.decode(i)
	if err != nil || len(r.Claims) == 0 && r.Beside == record.Nobody {
		return err
	}
	s := d.resource(i.Name)
	d.recall(s.note(r, i.Version, time.Now().Add(-max(0, i.Age)), nil))
	v, _, _ := s.look()
	st := v.State(&v.clock, i.Name)
	err = d.showBeside(ctx, &v, &st)
	if len(st.Holders)+len(st.Waiters) > 0 {
		*states = append(*states, st)
	}
	return err
}

// Evict implements [driver.Operator]. The holder is notified at its next renewal.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	var gave []parting
	r, lost, err := d.lease(ctx, name, &uncertain{}, d.others, func(v *view) error {
		err := v.Evict(owner, reason, v.floor)
		if err == nil {
			gave = append(gave, parting{v.next, v.Nonce})
		}
		return err
	})
	if err != nil {
		return err
	}
	if was, _ := done(gave, r.Nonce); was { // maybe not by its last write
		return nil
	}
	return lost
}

// RaiseFence implements [driver.Operator].
func (d *Driver) RaiseFence(ctx context.Context, name string, fence uint64) error {
	if err := driver.CheckRaise(fence); err != nil {
		return err
	}
	_, err := d.change(ctx, name, &uncertain{}, func(v *view) bool {
		before := v.Raised
		v.RaiseFence(fence)
		return v.Raised > before
	})
	return err
}

// SetLimit implements [driver.Operator]. The limit is part of the record, which then stays.
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if err := driver.CheckLimit(limit); err != nil {
		return err
	}
	_, err := d.change(ctx, name, &uncertain{}, func(v *view) bool {
		v.Limit = limit
		v.stays = true
		return true // even if it was set, because an earlier write of a limit may be served late
	})
	return err
}
