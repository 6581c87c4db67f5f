package quorum

import (
	"context"
	"slices"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
)

// RenewAll implements [driver.BatchRenewer]: one call to each node where its driver renews in
// batches too.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	verdicts := make([]verdict, len(renewals))
	answers := make(chan []answer, len(d.nodes))
	for _, r := range renewals {
		r.Claim.(*claim).begin()
	}
	caller, gone := context.WithCancel(ctx)
	defer gone()
	defer context.AfterFunc(d.life, gone)()
	for i, n := range d.nodes {
		b := newBatch(n, i, renewals)
		if !d.start(func() { answers <- b.renew(caller) }) {
			b.end()
			answers <- b.fail(driver.ErrClosed)
		}
	}
	undecided := func(v verdict) bool { return !d.decided(&v) }
	for n, waits := 0, true; n < len(d.nodes) && waits; n++ {
		select {
		case all := <-answers:
			for i, a := range all {
				verdicts[i].add(a)
			}
			waits = slices.ContainsFunc(verdicts, undecided)
		case <-ctx.Done():
			for i, r := range renewals {
				verdicts[i].miss(r.Claim.(*claim).parts, context.Cause(ctx))
			}
			waits = false
		}
	}
	for i := range renewals {
		r := &renewals[i]
		r.Answer(r.Claim.(*claim).renewed(ctx, r.TTL, &verdicts[i]))
	}
}

// A batch is the renewals at one node.
type batch struct {
	node   *node
	claims []*claim
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
		b.claims, b.parts, b.before, b.over = append(b.claims, c), append(b.parts, p), append(b.before, before), append(b.over, over)
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

// renew waits for an answer as long as caller does, or for as long as the node has for any call.
func (b *batch) renew(caller context.Context) []answer {
	defer b.end()
	for _, before := range b.before {
		<-before
	}
	if together, ok := b.node.driver.(driver.BatchRenewer); ok && len(b.parts) > 1 {
		asked := false
		err := b.node.renew(caller, func(ctx context.Context) error {
			asked = true
			together.RenewAll(ctx, b.ttls)
			return ctx.Err()
		})
		if !asked {
			return b.fail(err)
		}
	} else {
		b.renewEach(caller)
	}
	all := make([]answer, len(b.parts))
	for i, p := range b.parts {
		r := &b.ttls[i]
		all[i] = answer{part: p, grant: r.Grant, err: b.claims[i].counted(p, r.Err)}
	}
	return all
}

func (b *batch) renewEach(caller context.Context) {
	var all sync.WaitGroup
	room := make(chan struct{}, maxInFlight)
	for i := range b.ttls {
		r := &b.ttls[i]
		room <- struct{}{}
		all.Go(func() {
			r.Err = b.node.renew(caller, func(ctx context.Context) (err error) {
				r.Grant, err = r.Claim.Renew(ctx, r.TTL)
				return err
			})
			<-room
		})
	}
	all.Wait()
}
