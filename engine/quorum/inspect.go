package quorum

import (
	"cmp"
	"context"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// ask asks every node at once, waits for all, and returns their answers.
func ask[T any](ctx context.Context, d *Driver, question func(ctx context.Context, n driver.Operator) (T, error)) (values []T, v verdict) {
	replies := make([]T, len(d.nodes))
	errs := d.each(func(i int, n *node) error {
		return n.call(ctx, func(ctx context.Context) (err error) {
			if n.operator == nil {
				return driver.ErrUnsupported
			}
			replies[i], err = question(ctx, n.operator)
			return err
		})
	})
	for i, err := range errs {
		if v.add(answer{part: &part{node: d.nodes[i]}, err: err}); err == nil {
			values = append(values, replies[i])
		}
	}
	return values, v
}

// Inspect returns the owners that hold name at a majority of the nodes. It includes those that
// may, because nodes of a minority do not answer.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	states, v := ask(ctx, d, func(ctx context.Context, n driver.Operator) (driver.State, error) {
		return n.Inspect(ctx, name)
	})
	if len(states) < d.majority {
		return driver.State{}, v.report("inspect", len(d.nodes))
	}
	return d.merge(name, states, len(d.nodes)-len(states)), nil
}

// merge returns the holders that a majority knows, or would know if the silent nodes did, starting
// with the best known one. Their fences stay unknown. Each node has its own, and only the holder
// knows the greatest fence of its majority.
func (d *Driver) merge(name string, states []driver.State, silent int) driver.State {
	seen := make(map[string][]driver.Holder)
	st := driver.State{Resource: name}
	for _, one := range states {
		for _, h := range one.Holders {
			seen[h.Owner.Reveal()] = append(seen[h.Owner.Reveal()], h)
		}
	}
	for _, holders := range seen {
		if len(holders)+silent < d.majority {
			continue
		}
		h := holders[0]
		h.Fence = 0
		for _, other := range holders {
			h.Left, h.Limit = min(h.Left, other.Left), max(h.Limit, other.Limit)
		}
		st.Holders = append(st.Holders, h)
	}
	slices.SortFunc(st.Holders, func(a, b driver.Holder) int {
		return cmp.Or(cmp.Compare(len(seen[b.Owner.Reveal()]), len(seen[a.Owner.Reveal()])), cmp.Compare(a.Owner.Reveal(), b.Owner.Reveal()))
	})
	return st
}

func byName(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) }

// Evict ends owner's lease at every node that answers. If it returns nil, no majority holds the
// lease any more: most nodes answered, and they have ended it or did not have it.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	ended, v := ask(ctx, d, func(ctx context.Context, n driver.Operator) (struct{}, error) {
		return struct{}{}, n.Evict(ctx, name, owner, reason)
	})
	switch {
	case len(v.no) >= d.majority:
		return v.no[0].err
	case len(ended) > 0 && len(ended)+len(v.no) >= d.majority:
		return nil
	}
	return v.report("evict", len(d.nodes))
}

// RaiseFence returns ErrUnsupported.
func (*Driver) RaiseFence(context.Context, string, uint64) error { return driver.ErrUnsupported }

// SetLimit returns [driver.ErrUnsupported].
func (*Driver) SetLimit(context.Context, string, int) error { return driver.ErrUnsupported }
