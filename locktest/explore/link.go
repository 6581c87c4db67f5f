package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Link puts the network between the process and d, a driver that answers without one, such as a
// driver in memory. d serves calls to the engine called name, of which a process may use several.
//
// A call may be served twice, or after its caller has gone. It then has no effect if a later call
// of the same claim has returned, or, except for Try, if a later call was served.
func (p *Process) Link(name string, d driver.Driver) driver.Driver {
	l := &link{process: p, name: name, inner: d}
	l.pushes = p.Line(func() {})
	all, renews := d.(driver.BatchRenewer)
	if !renews {
		return l
	}
	renewer := &batchLink{l, all}
	if tries, ok := d.(driver.BatchTrier); ok {
		return &trierLink{renewer, tries}
	}
	return renewer
}

// A link is a driver across the network: calls of its claims are messages to inner.
type link struct {
	process *Process
	name    string
	inner   driver.Driver
	pushes  *Line
}

func (l *link) Features() driver.Features { return l.inner.Features() }

func (l *link) Close() error {
	l.pushes.Close()
	return l.inner.Close()
}

// at returns the place of a resource in this engine.
func (l *link) at(resource string) place { return place{l.name, resource} }

// of returns the part of the engine that a call for a resource touches.
func (l *link) of(resource string) string { return l.at(resource).String() }

// what returns the name of a kind of call.
func (l *link) what(op string) string {
	if l.name == "" {
		return op
	}
	return l.name + " " + op
}

func (l *link) Claim(req driver.Request) (driver.Claim, error) {
	if lost := req.Lost; lost != nil {
		req.Lost = func(cause error) { l.pushes.Push(l.what("hears of its loss"), func() { lost(cause) }) }
	}
	c := &linkClaim{link: l, wanted: req.Wanted}
	if c.wanted != nil {
		req.Wanted = c.recall
	}
	inner, err := l.inner.Claim(req)
	if err != nil {
		return nil, err
	}
	c.inner, c.req = inner, req
	return c, nil
}

// A linkClaim is a process's claim on an engine across the network.
type linkClaim struct {
	link   *link
	inner  driver.Claim
	req    driver.Request
	wanted func() // Wanted of the request, without the network; nil: the request has none

	mu       sync.Mutex
	sent     int           // guarded by mu; number of calls
	busy     bool          // guarded by mu; a call is in progress
	returned int           // guarded by mu; number of the last call that has returned
	served   int           // guarded by mu; number of the last call that was served
	over     bool          // guarded by mu; it was released, lost or refused, so a call of Wanted may be an old one
	serving  bool          // guarded by mu; a call is being served, and its answer says whether others wait
	tells    bool          // guarded by mu; the answer says that others wait
	granted  bool          // guarded by mu; the engine's last answer, which may be on its way, was a grant
	stopWake chan struct{} // ends the goroutine of passWake; nil: there is none
}

// An outcome is the result of a call.
type outcome struct {
	grant  driver.Grant
	err    error
	wanted bool // others wait
}

func (o outcome) String() string {
	if o.err != nil {
		return o.err.Error()
	}
	return fmt.Sprintf("yes, fence %d, for %v", o.grant.Fence, o.grant.TTL)
}

var errTooLate = errors.New("explore: came after a later call")

// enter begins a call. late, called when the engine serves the call, reports whether it must have
// no effect: a later call has returned or, except for Try, was served. leave must be called when
// the call has returned.
func (c *linkClaim) enter(op string) (late func() bool, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		c.link.process.world.overlap(op)
	}
	c.sent++
	c.busy = true
	c.over = op == "Release" || op == "Linger" || c.over && op != "Try"
	n := c.sent
	late = func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		isLate := c.returned > n || op != "Try" && c.served > n
		c.served = max(c.served, n)
		return isLate
	}
	return late, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.returned, c.busy = n, false
	}
}

// call sends one call over the network.
func (c *linkClaim) call(ctx context.Context, op string, serve func(ctx context.Context) outcome) outcome {
	late, leave := c.enter(op)
	defer leave()
	o, err := ask(ctx, c.link, op, c.link.of(c.req.Resource), func(ctx context.Context) (outcome, error) {
		if late() {
			return outcome{err: errTooLate}, nil
		}
		return c.tell(op, func() outcome { return serve(ctx) }), nil
	})
	if err != nil {
		return outcome{err: err}
	}
	c.hear(o)
	return o
}

// tell serves a call. It records whether the engine has called Wanted meanwhile.
func (c *linkClaim) tell(op string, serve func() outcome) outcome {
	c.mu.Lock()
	c.serving, c.tells = true, false
	c.mu.Unlock()
	o := serve()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving, o.wanted = false, c.tells
	switch op {
	case "Try":
		c.granted = o.err == nil
	case "Release", "Linger":
		c.granted = c.granted && o.err != nil
	}
	return o
}

// hear applies an answer.
func (c *linkClaim) hear(o outcome) {
	c.mu.Lock()
	c.over = c.over || errors.Is(o.err, driver.ErrLost) || errors.Is(o.err, driver.ErrBusy)
	wanted := o.wanted && !c.over
	c.mu.Unlock()
	if wanted {
		c.wanted()
	}
}

// recall reports that others wait: with the answer to the call that is being served, or unasked.
func (c *linkClaim) recall() {
	c.mu.Lock()
	c.tells = true
	serving, granted := c.serving, c.granted
	c.mu.Unlock()
	if serving {
		return
	}
	c.link.pushes.Push(c.link.what("is wanted"), func() {
		if granted {
			c.hear(outcome{wanted: true})
		} else { // the engine is at fault, and that must become visible
			c.wanted()
		}
	})
}

func (c *linkClaim) Try(ctx context.Context) (driver.Grant, error) {
	c.endWake()
	o := c.call(ctx, "Try", func(ctx context.Context) outcome { return c.tried(c.inner.Try(ctx)) })
	return o.grant, c.passBusy(o.err)
}

// tried records the engine's answer to a Try, and returns the outcome.
func (c *linkClaim) tried(g driver.Grant, err error) outcome {
	c.link.process.world.tried(c.link.at(c.req.Resource), c.link.inner.Features().Fair, &c.req, g, err)
	return outcome{grant: g, err: err}
}

// passBusy replaces the Wake in the error of a Try by one that passes the network.
func (c *linkClaim) passBusy(err error) error {
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok || busy.Wake == nil {
		return err
	}
	passed := *busy
	passed.Wake = c.passWake(busy.Wake)
	return &passed
}

func (c *linkClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	o := c.call(ctx, "Renew", func(ctx context.Context) outcome {
		g, err := c.inner.Renew(ctx, ttl)
		c.link.process.world.renewed(c.link.at(c.req.Resource), c.req.Owner, g, err)
		return outcome{grant: g, err: err}
	})
	return o.grant, o.err
}

func (c *linkClaim) Release(ctx context.Context, how driver.End) error {
	c.endWake()
	return c.call(ctx, ending(how), func(ctx context.Context) outcome { return c.released(c.inner.Release(ctx, how)) }).err
}

// released records the engine's answer to a Release, and returns the outcome.
func (c *linkClaim) released(err error) outcome {
	c.link.process.world.released(c.link.at(c.req.Resource), c.req.Owner, err)
	return outcome{err: err}
}

// ending returns the name of a kind of Release.
func ending(how driver.End) string {
	if how.Linger > 0 {
		return "Linger"
	}
	return "Release"
}

func (c *linkClaim) Note(ctx context.Context, note string) error {
	return c.call(ctx, "Note", func(ctx context.Context) outcome { return outcome{err: c.inner.Note(ctx, note)} }).err
}

// LiftFence calls the driver.FenceLifter behind the network. If there is none, it calls the
// driver.Operator, as the core does.
func (c *linkClaim) LiftFence(ctx context.Context, fence uint64) error {
	lift := func(ctx context.Context) error { return driver.ErrUnsupported }
	if inner, ok := c.inner.(driver.FenceLifter); ok {
		lift = func(ctx context.Context) error { return inner.LiftFence(ctx, fence) }
	} else if inner, ok := c.link.inner.(driver.Operator); ok {
		lift = func(ctx context.Context) error { return inner.RaiseFence(ctx, c.req.Resource, fence) }
	}
	return c.call(ctx, "LiftFence", func(ctx context.Context) outcome { return outcome{err: lift(ctx)} }).err
}

// passWake returns a channel that closes when the network has delivered the wake-up.
func (c *linkClaim) passWake(wake <-chan struct{}) <-chan struct{} {
	out, stop := make(chan struct{}), make(chan struct{})
	c.stopWake = stop
	go func() {
		select {
		case <-wake:
			c.link.pushes.Push(c.link.what("is woken"), sync.OnceFunc(func() { close(out) }))
		case <-stop:
		case <-c.link.process.world.finished:
		}
	}()
	return out
}

func (c *linkClaim) endWake() {
	if c.stopWake != nil {
		close(c.stopWake)
		c.stopWake = nil
	}
}

// operate calls the driver.Operator behind the network.
func operate[T any](ctx context.Context, l *link, op, touches string, serve func(ctx context.Context, inner driver.Operator) (T, error)) (T, error) {
	inner, ok := l.inner.(driver.Operator)
	if !ok {
		var none T
		return none, driver.ErrUnsupported
	}
	return ask(ctx, l, op, touches, func(ctx context.Context) (T, error) { return serve(ctx, inner) })
}

// ask sends a call over the network. The call counts as open until its answer has come.
func ask[T any](ctx context.Context, l *link, op, touches string, serve func(ctx context.Context) (T, error)) (T, error) {
	w, served := l.process.world, context.WithoutCancel(ctx)
	w.asked(1)
	a, err := l.process.Call(ctx, l.what(op), touches, func() any {
		v, err := serve(served)
		return reply[T]{v, err}
	})
	if err != nil {
		var none T
		return none, err
	}
	w.asked(-1)
	return a.(reply[T]).value, a.(reply[T]).err
}

// A reply is the result of a call.
type reply[T any] struct {
	value T
	err   error
}

// String returns a text for the log.
func (r reply[T]) String() string {
	if r.err != nil {
		return r.err.Error()
	}
	return fmt.Sprint(r.value)
}

func (l *link) Inspect(ctx context.Context, resource string) (driver.State, error) {
	return operate(ctx, l, "Inspect", l.of(resource), func(ctx context.Context, inner driver.Operator) (driver.State, error) {
		return inner.Inspect(ctx, resource)
	})
}

func (l *link) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	type page struct {
		states []driver.State
		next   string
	}
	p, err := operate(ctx, l, "List", "", func(ctx context.Context, inner driver.Operator) (p page, err error) {
		p.states, p.next, err = inner.List(ctx, prefix, after, limit)
		return p, err
	})
	return p.states, p.next, err
}

func (l *link) Evict(ctx context.Context, resource, owner, reason string) error {
	_, err := operate(ctx, l, "Evict", l.of(resource), func(ctx context.Context, inner driver.Operator) (struct{}, error) {
		err := inner.Evict(ctx, resource, owner, reason)
		l.process.world.wasEvicted(l.at(resource), owner, err)
		return struct{}{}, err
	})
	return err
}

func (l *link) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	_, err := operate(ctx, l, "RaiseFence", l.of(resource), func(ctx context.Context, inner driver.Operator) (struct{}, error) {
		return struct{}{}, inner.RaiseFence(ctx, resource, fence)
	})
	return err
}

func (l *link) SetLimit(ctx context.Context, resource string, limit int) error {
	_, err := operate(ctx, l, "SetLimit", l.of(resource), func(ctx context.Context, inner driver.Operator) (struct{}, error) {
		err := inner.SetLimit(ctx, resource, limit)
		l.process.world.limited(l.at(resource), limit, err)
		return struct{}{}, err
	})
	return err
}

// outcomes are the results of calls that were sent in one message.
type outcomes []outcome

// together sends calls of several claims in one message. They are lost or late together. serve gets
// the indices of those that may still have an effect, and serves them.
func (l *link) together(ctx context.Context, op string, claims []*linkClaim, ops []string, serve func(ctx context.Context, inTime []int, answers outcomes)) outcomes {
	lates := make([]func() bool, len(claims))
	for i, c := range claims {
		late, leave := c.enter(ops[i])
		lates[i] = late
		defer leave()
	}
	answers, err := ask(ctx, l, op, "", func(ctx context.Context) (outcomes, error) {
		answers := make(outcomes, len(claims))
		var inTime []int
		for i := range claims {
			if answers[i].err = errTooLate; !lates[i]() {
				inTime = append(inTime, i)
			}
		}
		all := func() { serve(ctx, inTime, answers) }
		for _, i := range inTime {
			inner := all
			all = func() { answers[i] = claims[i].tell(ops[i], func() outcome { inner(); return answers[i] }) }
		}
		all()
		return answers, nil
	})
	if err != nil {
		return slices.Repeat(outcomes{{err: err}}, len(claims))
	}
	for i, c := range claims {
		c.hear(answers[i])
	}
	return answers
}

// A batchLink is a link to a driver.BatchRenewer. One message has many renewals.
type batchLink struct {
	*link
	all driver.BatchRenewer
}

func (l *batchLink) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	claims, ops := make([]*linkClaim, len(renewals)), slices.Repeat([]string{"RenewAll"}, len(renewals))
	ttls := make([]time.Duration, len(renewals)) // the caller may reuse its slice before the message is served
	for i, r := range renewals {
		claims[i], ttls[i] = r.Claim.(*linkClaim), r.TTL
	}
	answers := l.together(ctx, "RenewAll", claims, ops, func(ctx context.Context, inTime []int, answers outcomes) {
		inner := make([]driver.Renewal, len(inTime))
		for n, i := range inTime {
			inner[n] = driver.Renewal{Claim: claims[i].inner, TTL: ttls[i]}
		}
		l.all.RenewAll(ctx, inner)
		for n, i := range inTime {
			req := &claims[i].req
			l.process.world.renewed(l.at(req.Resource), req.Owner, inner[n].Grant, inner[n].Err)
			answers[i].grant, answers[i].err = inner[n].Grant, inner[n].Err
		}
	})
	for i, o := range answers {
		renewals[i].Grant, renewals[i].Err = o.grant, o.err
	}
}

// A trierLink is a batchLink to a driver that is also a driver.BatchTrier.
type trierLink struct {
	*batchLink
	tries driver.BatchTrier
}

func (l *trierLink) TryAll(ctx context.Context, trials []driver.Trial) {
	claims, ops := make([]*linkClaim, len(trials)), slices.Repeat([]string{"Try"}, len(trials))
	for i, t := range trials {
		claims[i] = t.Claim.(*linkClaim)
		claims[i].endWake()
	}
	answers := l.together(ctx, "TryAll", claims, ops, func(ctx context.Context, inTime []int, answers outcomes) {
		inner := make([]driver.Trial, len(inTime))
		for n, i := range inTime {
			inner[n].Claim = claims[i].inner
		}
		l.tries.TryAll(ctx, inner)
		for n, i := range inTime {
			answers[i] = claims[i].tried(inner[n].Grant, inner[n].Err)
		}
	})
	for i, o := range answers {
		trials[i].Grant, trials[i].Err = o.grant, claims[i].passBusy(o.err)
	}
}

func (l *trierLink) ReleaseAll(ctx context.Context, endings []driver.Ending) {
	claims, ops, hows := make([]*linkClaim, len(endings)), make([]string, len(endings)), make([]driver.End, len(endings))
	for i, e := range endings {
		claims[i], ops[i], hows[i] = e.Claim.(*linkClaim), ending(e.How), e.How
		claims[i].endWake()
	}
	answers := l.together(ctx, "ReleaseAll", claims, ops, func(ctx context.Context, inTime []int, answers outcomes) {
		inner := make([]driver.Ending, len(inTime))
		for n, i := range inTime {
			inner[n] = driver.Ending{Claim: claims[i].inner, How: hows[i]}
		}
		l.tries.ReleaseAll(ctx, inner)
		for n, i := range inTime {
			answers[i] = claims[i].released(inner[n].Err)
		}
	})
	for i, o := range answers {
		endings[i].Err = o.err
	}
}
