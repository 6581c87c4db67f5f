package httplock

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// An operator is a service whose engine implements driver.Operator.
type operator struct{ *service }

// errAlien means that something other than the service has answered.
var errAlien = fmt.Errorf("%w: a yes that does not say what is held", errSilent)

// Inspect implements driver.Operator. Owners are shown by their handles, because the service never
// reveals an owner.
func (d operator) Inspect(ctx context.Context, resource string) (driver.State, error) {
	var s wire.State
	if err := d.get(ctx, wire.Show, url.Values{"name": {resource}}, &s); err != nil {
		return driver.State{}, err
	}
	if s.Name != resource || s.Holders == nil { // must not be mistaken for a free lock
		return driver.State{}, errAlien
	}
	return stateOf(s), damage(s.Damaged)
}

// List implements driver.Operator, as Inspect does, with the pages of the service.
func (d operator) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	var page wire.Locks
	query := url.Values{"prefix": {prefix}, "limit": {strconv.Itoa(min(limit, wire.MaxPage))}}
	if after != "" {
		query.Set("after", after)
	}
	if err := d.get(ctx, wire.List, query, &page); err != nil {
		return nil, "", err
	}
	if page.Locks == nil {
		return nil, "", errAlien
	}
	for _, s := range page.Locks {
		states = append(states, stateOf(s))
	}
	return states, page.Next, damage(page.Damaged)
}

func damage(text string) error {
	if text == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", driver.ErrCorrupt, text)
}

// Evict implements driver.Operator. It takes an owner or, as Inspect shows it, its handle.
func (d operator) Evict(ctx context.Context, resource, owner, reason string) error {
	return d.post(ctx, d.links.WatchLate, wire.Evict, wire.EvictCall{Name: resource, Owner: owner, Reason: reason}, &done{})
}

// RaiseFence implements driver.Operator.
func (d operator) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	return d.post(ctx, d.links.WatchLate, wire.Fence, wire.FenceCall{Claim: wire.Claim{Name: resource}, Token: strconv.FormatUint(fence, 10)}, &done{})
}

// SetLimit implements driver.Operator.
func (d operator) SetLimit(ctx context.Context, resource string, limit int) error {
	if err := driver.CheckLimit(limit); err != nil {
		return err
	}
	if !d.features.Limits {
		return driver.ErrUnsupported
	}
	return d.post(ctx, d.links.WatchLate, wire.Limit, wire.LimitCall{Name: resource, Limit: &limit}, &done{})
}

func stateOf(s wire.State) driver.State {
	state := driver.State{Resource: s.Name, Fence: fenceOf(s.Token), Limit: s.Limit}
	for _, h := range s.Holders {
		state.Holders = append(state.Holders, holderOf(h))
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, driver.Waiter{Owner: driver.ShownOwner(w.Handle), Note: wire.Shown(w.Note, w.Details), Mode: modeOf(w.Mode), Weight: modeOf(w.Mode).Uses(w.Weight), Waited: wire.Duration(w.Waited)})
	}
	return state
}

func holderOf(h wire.Holder) driver.Holder {
	return driver.Holder{
		Owner: driver.ShownOwner(h.Handle), Mode: modeOf(h.Mode), Limit: h.Limit, Weight: modeOf(h.Mode).Uses(h.Weight), Fence: fenceOf(h.Token),
		Held: wire.Duration(h.Held), Left: wire.Duration(h.Left), TTL: wire.Duration(h.TTL), Note: wire.Shown(h.Note, h.Details),
	}
}

func modeOf(name string) driver.Mode {
	if name == wire.Shared {
		return driver.Shared
	}
	return driver.Exclusive
}

// fenceOf returns the fence in token, or 0, unknown, if it is not a number.
func fenceOf(token string) uint64 {
	fence, _ := strconv.ParseUint(token, 10, 64)
	return fence
}

// Shown is the placeholder for owners in the results of Inspect and List.
func Shown(owner string) string { return wire.Handle(owner) }

// History returns the answer of the service to GET /v1/history with that query.
func (d *service) History(ctx context.Context, query url.Values) (page wire.Entries, err error) {
	if err = d.get(ctx, wire.History, query, &page); err == nil && page.Entries == nil {
		err = errAlien
	}
	return page, err
}
