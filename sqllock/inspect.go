package sqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// maxNumber keeps what a row counts in 53 bits, so that it survives JSON numbers, and tokens
// in 63, so that they fit a BIGINT.
const maxNumber = 1<<53 - 1

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, resource string) (driver.State, error) {
	r, err := d.lookAt(ctx, resource)
	if r == nil {
		return driver.State{Resource: resource}, err
	}
	return r.state(), err
}

// List implements driver.Inspector.
func (d *Driver) List(ctx context.Context, prefix string) ([]driver.State, error) {
	all, err := d.look(ctx, d.texts.list, prefix)
	if err != nil {
		return nil, err
	}
	var states []driver.State
	var damaged []error
	for i := range all {
		if !strings.HasPrefix(all[i].lock.name, prefix) {
			break // names are in the order of their bytes, and began at prefix
		}
		if all[i].damage != nil {
			damaged = append(damaged, all[i].damage)
		}
		if s := all[i].state(); len(s.Holders)+len(s.Waiters) > 0 {
			states = append(states, s)
		}
	}
	return states, errors.Join(damaged...)
}

func (r *resource) state() driver.State {
	return driver.State{Resource: r.lock.name, Fence: driver.FenceOf(max(r.lock.fence, r.lock.raised)), Holders: r.holders(), Waiters: r.waiters()}
}

// Evict implements driver.Evictor. The holder's next Renew says why. An empty owner
// evicts a hold that lingers.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	held := false
	err := d.change(ctx, name, func(r *resource) bool {
		held = r.evict(owner, printable(reason)) != nil
		return held
	})
	if err == nil && !held {
		return fmt.Errorf("%w: that owner does not hold %q", driver.ErrLost, name)
	}
	return err
}

// evict ends owner's lease and raises the fence. It leaves a trace, which tells the holder
// why for as long as its lease would have lasted; nil: not held.
func (r *resource) evict(owner, reason string) *claimRow {
	trace := r.sharer(owner)
	if r.heldBy(owner) {
		r.claims = append(r.claims, claimRow{Ticket: r.nextTicket(), Owner: owner, Fence: r.lock.fence, Expires: r.lock.expires, Since: r.lock.since})
		trace = &r.claims[len(r.claims)-1]
		r.lock.owner, r.lock.expires, r.lock.note = "", 0, ""
	} else if trace == nil {
		return nil
	}
	trace.Status, trace.Note = evicted, reason
	r.lock.fence = r.nextFence()
	return trace
}

// sharer returns owner's shared lease; for an empty owner the first that lingers.
func (r *resource) sharer(owner string) *claimRow {
	for i := range r.claims {
		c := &r.claims[i]
		if c.Status == holding && c.Owner == owner || c.Status == lingering && owner == "" {
			return c
		}
	}
	return nil
}

// RaiseFence implements driver.FenceRaiser. Tokens have 63 bits: it refuses more.
func (d *Driver) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	number := driver.NumberOf(fence)
	if number > maxNumber {
		return fmt.Errorf("%w: fence %d has more than 63 bits", driver.ErrUnsupported, fence)
	}
	return d.exec(ctx, d.texts.raise, resource, int64(number))
}
