package quorum

import (
	"context"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// RenewAll implements driver.BatchRenewer: one goroutine a node, and one call to it where
// its driver renews in batches too.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	verdicts := make([]verdict, len(renewals))
	answers := make(chan []answer, len(d.nodes))
	for i, n := range d.nodes {
		b := newBatch(n, i, renewals)
		if !d.start(func() { answers <- b.renew(context.WithoutCancel(ctx)) }) {
			b.end()
			answers <- b.fail(driver.ErrClosed)
		}
	}
	for range d.nodes {
		for i, a := range <-answers {
			verdicts[i].add(a)
		}
		if !slices.ContainsFunc(verdicts, func(v verdict) bool { return !d.decided(&v) }) {
			break
		}
	}
	for i := range renewals {
		r := &renewals[i]
		r.Grant, r.Err = r.Claim.(*claim).renewed(ctx, &verdicts[i])
	}
}

// A batch is the renewals at one node.
type batch struct {
	node   *node
	parts  []*part
	before []chan struct{} // closed when the part's last call is over
	over   []chan struct{} // closed when this one is
	ttls   []driver.Renewal
}

// newBatch takes the places of a batch in the order of each part's calls.
func newBatch(n *node, number int, renewals []driver.Renewal) *batch {
	b := &batch{node: n}
	for _, r := range renewals {
		c := r.Claim.(*claim)
		p := c.parts[number]
		before, over := c.next(p)
		b.parts, b.before, b.over = append(b.parts, p), append(b.before, before), append(b.over, over)
		b.ttls = append(b.ttls, driver.Renewal{Claim: p.claim, TTL: r.TTL})
	}
	return b
}

func (b *batch) end() {
	for _, over := range b.over {
		close(over)
	}
}

func (b *batch) fail(err error) []answer {
	all := make([]answer, len(b.parts))
	for i, p := range b.parts {
		all[i] = answer{part: p, err: err}
	}
	return all
}

func (b *batch) renew(ctx context.Context) []answer {
	defer b.end()
	for _, before := range b.before {
		<-before
	}
	together, ok := b.node.driver.(driver.BatchRenewer)
	if ok {
		err := b.node.call(ctx, func(ctx context.Context) error {
			together.RenewAll(ctx, b.ttls)
			return ctx.Err()
		})
		if err != nil {
			return b.fail(err)
		}
	}
	all := make([]answer, len(b.parts))
	for i, p := range b.parts {
		r := &b.ttls[i]
		if !ok {
			r.Err = b.node.call(ctx, func(ctx context.Context) (err error) {
				r.Grant, err = r.Claim.Renew(ctx, r.TTL)
				return err
			})
		}
		all[i] = answer{part: p, grant: r.Grant, err: r.Err}
	}
	return all
}
