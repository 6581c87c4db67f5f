package sqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// Inspect implements [driver.Operator].
func (d *Driver) Inspect(ctx context.Context, resource string) (driver.State, error) {
	var r *row
	err := d.repeated(ctx, func(ctx context.Context) (err error) {
		r, err = d.lookBy(ctx, d.texts.show, resource)
		return err
	})
	if r == nil {
		return driver.State{Resource: resource}, err
	}
	return r.State(r.now, resource), err
}

// List implements [driver.Operator], sorted by name.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	from := prefix
	if after != "" {
		from = max(prefix, after+"\x01") // no name is in between: it would have a control character
	}
	limit = min(limit, 1000)
	var all []*row
	err = d.repeated(ctx, func(ctx context.Context) (err error) {
		all, err = d.look(ctx, d.texts.list, from, limit+1)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	var damaged []error
	for i, r := range all {
		if !strings.HasPrefix(r.name, prefix) {
			break // names are in the order of their bytes, and began at prefix
		}
		if i == limit {
			next = all[limit-1].name
			break
		}
		if r.damage != nil {
			damaged = append(damaged, r.damage)
		}
		// Damage may hide holders: without any, the lock would be called free.
		if s := r.State(r.now, r.name); len(s.Holders) > 0 || len(s.Waiters) > 0 && r.damage == nil {
			states = append(states, s)
		}
	}
	return states, next, errors.Join(damaged...)
}

// Evict implements [driver.Operator]. The holder's next Renew returns the reason. An empty owner
// evicts a hold that lingers.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	var lost error
	err := d.change(ctx, name, func(r *row) bool {
		lost = r.Evict(owner, printable(reason), r.floor)
		return lost == nil
	})
	if err == nil && lost != nil {
		return fmt.Errorf("%w: that owner does not hold %q", driver.ErrLost, name)
	}
	return err
}

// RaiseFence implements [driver.Operator].
func (d *Driver) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	if err := driver.CheckRaise(fence); err != nil {
		return err
	}
	return d.exec(ctx, d.texts.raise, resource, int64(driver.NumberOf(fence)))
}

// SetLimit implements [driver.Operator]. The limit is in the record of the row, which is not removed
// then.
func (d *Driver) SetLimit(ctx context.Context, resource string, limit int) error {
	if err := driver.CheckLimit(limit); err != nil {
		return err
	}
	return d.change(ctx, resource, func(r *row) bool {
		before := r.Limit
		r.Limit = limit
		return r.Limit != before
	})
}
