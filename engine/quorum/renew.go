package quorum

import (
	"context"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/several"
	"github.com/leasehold-go/leasehold/internal/waiting"
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
	answers := make(chan renewed, len(renewals)*len(d.nodes)) // so that no batch waits for its reader
	for i, n := range d.nodes {
		batches = append(batches, newBatches(n, i, renewals, answers)...)
	}
	for _, b := range batches {
		if !d.life.Go(func() { b.renew(caller) }) {
			b.fail(driver.ErrClosed)
		}
	}
	answered, missing := make([]bool, len(renewals)), len(renewals)
	answer := func(i int) { // the claim's next call may begin at once
		r := &renewals[i]
		answered[i] = true
		missing--
		r.Answer(r.Claim.(*claim).renewed(ctx, r.TTL, &verdicts[i]))
	}
	for n, waits := 0, true; n < cap(answers) && missing > 0 && waits; n++ {
		select {
		case a := <-answers:
			if answered[a.at] {
				continue
			}
			v := &verdicts[a.at]
			if v.add(a.answer); d.decided(v) || v.count() == len(d.nodes) {
				answer(a.at)
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

// A renewed is a node's answer to the renewal with that index.
type renewed struct {
	at int
	answer
}

// A batch is the renewals at one node that are sent together.
type batch struct {
	node    *node
	answers chan<- renewed
	claims  []*claim
	parts   []*part
	at      []int           // the index of each renewal among all
	before  chan struct{}   // closed when the last calls to the parts are over
	over    []chan struct{} // for each part; closed when this call is over
	ttls    []driver.Renewal
}

// newBatches gives renewals their places in the order of each part's calls. A part whose last call
// is not over, because it hangs for example, has a batch of its own, so that the others do not wait
// for it.
func newBatches(n *node, number int, renewals []driver.Renewal, answers chan<- renewed) []*batch {
	ready := &batch{node: n, answers: answers}
	batches := []*batch{ready}
	for i, r := range renewals {
		c := r.Claim.(*claim)
		p := c.parts[number]
		before, over := c.next(p)
		b := ready
		if !waiting.Closed(before) {
			b = &batch{node: n, answers: answers}
			batches = append(batches, b)
		}
		b.claims, b.parts, b.at = append(b.claims, c), append(b.parts, p), append(b.at, i)
		b.before, b.over = before, append(b.over, over)
		b.ttls = append(b.ttls, driver.Renewal{Claim: p.claim, TTL: r.TTL})
	}
	if len(ready.parts) == 0 {
		return batches[1:]
	}
	return batches
}

// answer passes the answer to the i-th renewal on. Its part's next call may begin.
func (b *batch) answer(i int, g driver.Grant, err error) {
	a := renewed{b.at[i], answer{part: b.parts[i], grant: g, err: b.claims[i].counted(b.parts[i], err)}}
	close(b.over[i])
	b.answers <- a
}

// fail answers all renewals.
func (b *batch) fail(err error) {
	for i := range b.parts {
		b.answer(i, driver.Grant{}, err)
	}
}

// renew sends the batch. It waits for an answer as long as caller does, and at least for the node's
// timeout.
func (b *batch) renew(caller context.Context) {
	<-b.before
	together, ok := b.node.driver.(driver.BatchRenewer)
	if !ok || len(b.parts) == 1 {
		b.renewEach(caller)
		return
	}
	asked, answered := false, make([]bool, len(b.ttls))
	for i := range b.ttls {
		r := &b.ttls[i]
		r.Answered = func() {
			answered[i] = true
			b.answer(i, r.Grant, r.Err)
		}
	}
	err := b.node.renew(caller, func(ctx context.Context) error {
		asked = true
		together.RenewAll(ctx, b.ttls)
		return ctx.Err()
	})
	if !asked {
		b.fail(err)
		return
	}
	for i, done := range answered {
		if !done {
			b.answer(i, b.ttls[i].Grant, b.ttls[i].Err)
		}
	}
}

func (b *batch) renewEach(caller context.Context) {
	several.Each(caller, len(b.ttls), maxInFlight, several.Slow, func(i int) {
		var g driver.Grant
		err := b.node.renew(caller, func(ctx context.Context) (err error) {
			g, err = b.ttls[i].Claim.Renew(ctx, b.ttls[i].TTL)
			return err
		})
		b.answer(i, g, err)
	})
}
