package redislock

import (
	"context"
	"sync"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
)

// An exchange is a call of a claim and the handling of its answer. conclude returns what must be
// done by further calls, or nil.
type exchange struct {
	claim    *claim
	call     *call
	conclude func(answer, error) (rest func())
}

// ask makes the call and the further calls after it.
func (x *exchange) ask(ctx context.Context) {
	if rest := x.conclude(x.claim.d.pipelines.ask(ctx, x.claim.keys.lock, x.call)); rest != nil {
		rest()
	}
}

// TryAll implements [driver.BatchTrier]. The attempts for one server leave in one write. Each has an
// answer of its own.
func (d *Driver) TryAll(ctx context.Context, trials []driver.Trial) {
	d.exchange(ctx, len(trials), func(i int) (exchange, func()) {
		t := &trials[i]
		c := t.Claim.(*claim)
		try := func() { t.Grant, t.Err = c.Try(ctx) }
		again := func() func() {
			if links.Again(ctx, t.Err) {
				return try
			}
			return nil
		}
		switch {
		case c.req.Queue || d.usable(ctx) != nil:
			return exchange{}, try
		case c.mayBePlain():
			was := c.beginTake()
			return exchange{c, c.newTake(), func(reply answer, err error) func() {
				var taken bool
				if t.Grant, taken, t.Err = c.took(ctx, was, reply, err); !taken && t.Err == nil {
					return try
				}
				return again()
			}}, nil
		}
		d.subscriber.listen(c)
		before := c.beginAttempt()
		return exchange{c, c.newTry(before.state, 0), func(reply answer, err error) func() {
			g, busy, err := c.attempted(ctx, 0, before, reply, err)
			t.Grant, t.Err = c.settleWithoutPlace(ctx, g, busy, err)
			return again()
		}}, nil
	})
}

// ReleaseAll implements [driver.BatchTrier], as TryAll does. One server serves the releases in
// their order.
func (d *Driver) ReleaseAll(ctx context.Context, endings []driver.Ending) {
	d.exchange(ctx, len(endings), func(i int) (exchange, func()) {
		e := &endings[i]
		c, how := e.Claim.(*claim), e.How
		if was := c.load(); was.isGone() || was.knowsNothing() || d.usable(ctx) != nil {
			return exchange{}, func() { e.Err = c.Release(ctx, how) }
		}
		d.subscriber.forget(c)
		l := c.leave(how)
		again := func() func() {
			if links.Again(ctx, e.Err) {
				return func() { e.Err = c.endAgain(ctx, how, e.Err) }
			}
			return nil
		}
		if l.plain {
			return exchange{c, c.newGive(), func(reply answer, err error) func() {
				var given bool
				if given, e.Err = c.gave(reply, err); !given && e.Err == nil {
					return func() { e.Err = c.endAgain(ctx, how, c.endWhole(ctx, how, l)) }
				}
				return again()
			}}, nil
		}
		return exchange{c, c.newRelease(how, l.late, l.which), func(reply answer, err error) func() {
			given, err := c.released(reply, explain(err))
			e.Err = c.ended(ctx, l.fence, given, err)
			return again()
		}}, nil
	})
}

// exchange makes n exchanges. begin prepares one, or returns as whole a function that makes its
// calls. Calls whose connections are up leave in one write to each server. The others run beside
// them.
func (d *Driver) exchange(ctx context.Context, n int, begin func(i int) (x exchange, whole func())) {
	var others sync.WaitGroup
	held := make([]exchange, 0, n)
	conns := make([]*conn, 0, 1)
	for i := range n {
		x, whole := begin(i)
		switch {
		case whole != nil:
			others.Go(whole)
		case d.pipelines.hold(ctx, x.claim.keys.lock, x.call):
			held = append(held, x)
			if last := len(conns) - 1; last < 0 || conns[last] != x.call.on {
				conns = append(conns, x.call.on)
			}
		default:
			others.Go(func() { x.ask(ctx) })
		}
	}
	for _, conn := range conns {
		conn.flush()
	}
	for i, x := range held {
		reply, err := d.pipelines.ask(ctx, x.claim.keys.lock, x.call)
		if rest := x.conclude(reply, err); rest != nil {
			others.Go(rest)
		}
		if err != nil && !isReply(err) { // the other answers may take as long, so wait for all of them at once
			for _, x := range held[i+1:] {
				others.Go(func() { x.ask(ctx) })
			}
			break
		}
	}
	others.Wait()
}
