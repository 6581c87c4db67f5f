package quorum

import (
	"cmp"
	"context"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// ask puts one question to every node at once, waits for all, and returns the answers
// when they are a majority's.
func ask[T any](ctx context.Context, d *Driver, call string, question func(ctx context.Context, n driver.Driver) (T, error)) ([]T, error) {
	type reply struct {
		answer
		value T
	}
	replies := make(chan reply, len(d.nodes))
	for _, n := range d.nodes {
		asked := d.start(func() {
			r := reply{answer: answer{part: &part{node: n}}}
			r.err = n.call(ctx, func(ctx context.Context) (err error) {
				r.value, err = question(ctx, n.driver)
				return err
			})
			replies <- r
		})
		if !asked {
			return nil, driver.ErrClosed
		}
	}
	var v verdict
	var values []T
	for range d.nodes {
		r := <-replies
		v.add(r.answer)
		if r.err == nil {
			values = append(values, r.value)
		}
	}
	switch {
	case len(values) >= d.majority:
		return values, nil
	case len(v.no) > len(d.nodes)-d.majority:
		return nil, v.no[0].err
	}
	return nil, v.report(call, len(d.nodes))
}

// Inspect returns who holds name at a majority of the nodes.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	states, err := ask(ctx, d, "inspect", func(ctx context.Context, n driver.Driver) (driver.State, error) {
		in, ok := n.(driver.Inspector)
		if !ok {
			return driver.State{}, driver.ErrUnsupported
		}
		return in.Inspect(ctx, name)
	})
	if err != nil {
		return driver.State{}, err
	}
	return d.merge(name, states), nil
}

// List returns what a majority of the nodes lists as held.
func (d *Driver) List(ctx context.Context, prefix string) ([]driver.State, error) {
	lists, err := ask(ctx, d, "list", func(ctx context.Context, n driver.Driver) ([]driver.State, error) {
		in, ok := n.(driver.Inspector)
		if !ok {
			return nil, driver.ErrUnsupported
		}
		return in.List(ctx, prefix)
	})
	if err != nil {
		return nil, err
	}
	byName := make(map[string][]driver.State)
	for _, list := range lists {
		for _, st := range list {
			byName[st.Resource] = append(byName[st.Resource], st)
		}
	}
	var held []driver.State
	for name, states := range byName {
		if st := d.merge(name, states); len(st.Holders) > 0 {
			held = append(held, st)
		}
	}
	slices.SortFunc(held, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	return held, nil
}

// merge keeps the holders that a majority knows. Their fences stay unknown: each node
// has one of its own for them, and only the holder knows which was the greatest of those
// that made its majority.
func (d *Driver) merge(name string, states []driver.State) driver.State {
	seen := make(map[string][]driver.Holder)
	st := driver.State{Resource: name}
	for _, one := range states {
		for _, h := range one.Holders {
			seen[h.Owner] = append(seen[h.Owner], h)
		}
	}
	for _, holders := range seen {
		if len(holders) < d.majority {
			continue
		}
		h := holders[0]
		h.Fence = 0
		for _, other := range holders {
			h.Left, h.Limit = min(h.Left, other.Left), max(h.Limit, other.Limit)
		}
		st.Holders = append(st.Holders, h)
	}
	return st
}

// Evict ends owner's lease at every node that answers, and at a majority unless it
// returns an error.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	_, err := ask(ctx, d, "evict", func(ctx context.Context, n driver.Driver) (struct{}, error) {
		ev, ok := n.(driver.Evictor)
		if !ok {
			return struct{}{}, driver.ErrUnsupported
		}
		return struct{}{}, ev.Evict(ctx, name, owner, reason)
	})
	return err
}
