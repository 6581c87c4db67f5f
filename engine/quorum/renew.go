package quorum

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
)

// RenewAll implements [driver.BatchRenewer]. It makes one call to each node whose driver renews
// in batches too.
func (d *Driver) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	verdicts := make([]verdict, len(renewals))
	for _, r := range renewals {
		r.Claim.(*claim).begin()
	}
	caller, gone := context.WithCancel(ctx)
	defer gone()
	defer context.AfterFunc(d.life, gone)()
	var batches []*batch
	for i, n := range d.nodes {
		batches = append(batches, newBatches(n, i, renewals)...)
	}
	answers := make(chan *batch, len(batches))
	for _, b := range batches {
		if !d.start(func() { b.renew(caller); answers <- b }) {
			b.end()
			b.fail(driver.ErrClosed)
			answers <- b
		}
	}
	answered, missing := make([]bool, len(renewals)), len(renewals)
	answer := func(i int) { // the claim's next call may begin at once
		r := &renewals[i]
		answered[i] = true
		missing--
		r.Answer(r.Claim.(*claim).renewed(ctx, r.TTL, &verdicts[i]))
	}
	for n, waits := 0, true; n < len(batches) && missing > 0 && waits; n++ {
		select {
		case b := <-answers:
			for k, i := range b.at {
				if answered[i] {
					continue
				}
				if verdicts[i].add(b.answers[k]); d.decided(&verdicts[i]) {
					answer(i)
				}
			}
		case <-ctx.Done():
			waits = false
		}
	}
	for i, r := range renewals {
		if !answered[i] {
			verdicts[i].miss(r.Claim.(*claim).parts, ctx.Err())
			answer(i)
		}
	}
}

// A batch is the renewals at one node that are sent together.
type batch struct {
	node    *node
	claims  []*claim
	parts   []*part
	at      []int           // the index of each renewal among all
	before  []chan struct{} // for each part; closed when its last call is over
	over    []chan struct{} // for each part; closed when this call is over
	ttls    []driver.Renewal
	answers []answer
}

// newBatches gives renewals their places in the order of each part's calls. A part whose last call
// is not over, because it hangs for example, has a batch of its own, so that the others do not wait
// for it.
func newBatches(n *node, number int, renewals []driver.Renewal) []*batch {
	ready := &batch{node: n}
	batches := []*batch{ready}
	for i, r := range renewals {
		c := r.Claim.(*claim)
		p := c.parts[number]
		before, over := c.next(p)
		b := ready
		select {
		case <-before:
		default:
			b = &batch{node: n}
			batches = append(batches, b)
		}
		b.claims, b.parts, b.at = append(b.claims, c), append(b.parts, p), append(b.at, i)
		b.before, b.over = append(b.before, before), append(b.over, over)
		b.ttls = append(b.ttls, driver.Renewal{Claim: p.claim, TTL: r.TTL})
	}
	if len(ready.parts) == 0 {
		return batches[1:]
	}
	return batches
}

func (b *batch) end() {
	for _, over := range b.over {
		close(over)
	}
}

func (b *batch) fail(err error) {
	for _, p := range b.parts {
		b.answers = append(b.answers, answer{part: p, err: err})
	}
}

// renew sends the batch. It waits for an answer as long as caller does, and at least for the node's
// timeout.
func (b *batch) renew(caller context.Context) {
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
			b.fail(err)
			return
		}
	} else {
		b.renewEach(caller)
	}
	for i, p := range b.parts {
		r := &b.ttls[i]
		b.answers = append(b.answers, answer{part: p, grant: r.Grant, err: b.claims[i].counted(p, r.Err)})
	}
}

func (b *batch) renewEach(caller context.Context) {
	several.Bounded(len(b.ttls), maxInFlight, func(i int) {
		r := &b.ttls[i]
		r.Err = b.node.renew(caller, func(ctx context.Context) (err error) {
			r.Grant, err = r.Claim.Renew(ctx, r.TTL)
			return err
		})
	})
}
