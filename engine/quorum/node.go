package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// maxInFlight bounds the concurrent calls to one node. Otherwise a node that hangs would collect a
// goroutine for each claim of the program.
const maxInFlight = 64

// ErrNodeDown: the node did not answer the last calls in time.
var ErrNodeDown = errors.New("node does not answer")

// A node is one of the engines, with its health.
type node struct {
	d        *Driver
	number   int
	driver   driver.Driver
	operator driver.Operator // the same driver; nil: it is no Operator
	timeout  time.Duration
	slots    chan struct{}
	known    atomic.Bool // its id was compared with the others'
	late     atomic.Bool // its last list did not answer in time

	mu    sync.Mutex
	down  bool          // guarded by mu; its last call exceeded the timeout
	probe chan struct{} // guarded by mu; closed when a call has found out whether it is back; nil: no such call
}

func newNode(d *Driver, number int, inner driver.Driver, timeout time.Duration) *node {
	operator, _ := inner.(driver.Operator)
	return &node{d: d, number: number, driver: inner, operator: operator, timeout: timeout, slots: make(chan struct{}, maxInFlight)}
}

// call makes one call to the node when there is room for it, bounded from then on. While the node
// is down, one call at a time finds out whether it is back. The others wait for that call and share
// its outcome.
func (n *node) call(ctx context.Context, do func(ctx context.Context) error) error {
	if !n.waitForProbe(ctx) {
		return ErrNodeDown
	}
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	case <-ctx.Done():
		return fmt.Errorf("%d calls are before it: %w", maxInFlight, ctx.Err())
	}
	probe, ok := n.admit()
	if !ok {
		return ErrNodeDown
	}
	call, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	err := n.ask(call, do)
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() == nil { // otherwise the call was cut short, which says nothing about the node
		n.down = err != nil && errors.Is(call.Err(), context.DeadlineExceeded)
	}
	if probe != nil {
		n.probe = nil
		close(probe)
	}
	return err
}

// renew makes one call, which need not be quick: it lasts as long as caller waits, and at least the
// node's timeout. So a slow node, as on a busy machine, does not cost leases that have seconds
// left. After the timeout the node counts as down for other calls. Renewals ignore that, because
// the core makes few at a time.
func (n *node) renew(caller context.Context, do func(ctx context.Context) error) error {
	call, cancel := context.WithCancel(context.WithoutCancel(caller))
	defer cancel()
	defer time.AfterFunc(n.timeout, func() { n.mark(true) }).Stop()
	start := time.Now()
	defer context.AfterFunc(caller, func() { time.AfterFunc(n.timeout-time.Since(start), cancel) })()
	err := n.ask(call, do)
	n.mark(err != nil && call.Err() != nil)
	return err
}

// listTimeout bounds a list at one node if its caller has no earlier deadline.
const listTimeout = 5 * time.Second

// list makes one call that may take long at a healthy node. So its outcome counts only for lists,
// and no other call waits for it. It takes at most half of the caller's time, the rest is for other
// nodes. At a node that is down it takes the node's timeout at most. With hurry, so it does at a
// node whose last list was late.
func (n *node) list(ctx context.Context, hurry bool, do func(ctx context.Context) error) error {
	limit := listTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	if n.isDown() || hurry && n.late.Load() {
		limit = min(limit, n.timeout)
	}
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(n.d.life, cancel)()
	err := n.ask(call, do)
	if late := errors.Is(call.Err(), context.DeadlineExceeded); err == nil || late && ctx.Err() == nil {
		n.late.Store(err != nil)
	}
	return err
}

func (n *node) mark(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

// waitForProbe waits while another call finds out whether the node is back, and reports
// whether it may be.
func (n *node) waitForProbe(ctx context.Context) bool {
	n.mu.Lock()
	probe := n.probe
	n.mu.Unlock()
	if probe == nil {
		return true
	}
	select {
	case <-probe:
		return !n.isDown()
	case <-ctx.Done():
		return false
	}
}

// admit lets a call through. While the node is down, that call is the only one, and closes probe at
// its end.
func (n *node) admit() (probe chan struct{}, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.down {
		return nil, true
	}
	if n.probe != nil {
		return nil, false
	}
	n.probe = make(chan struct{})
	return n.probe, true
}

func (n *node) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down
}

// ask makes a call. At its first use, the node is compared with the others.
func (n *node) ask(ctx context.Context, do func(ctx context.Context) error) error {
	if who, ok := n.driver.(driver.Identifier); ok && !n.known.Load() {
		id, err := who.Identify(ctx)
		if err != nil {
			return fmt.Errorf("identify: %w", err)
		}
		if err := n.d.claimID(n.number, id); err != nil {
			return err
		}
		n.known.Store(true)
	}
	return do(ctx)
}

// A part is the claim at one node. Calls on it run one after the other, because a call that came
// too late to count must end before the next begins.
type part struct {
	node  *node
	claim driver.Claim
	last  chan struct{} // guarded by claim.mu; closed when the last requested call is over

	fence    uint64 // the fence of its grant; only the running call uses it
	repeated bool   // the last Try returned the same grant as an earlier one; only the running call uses it
	lost     bool   // guarded by claim.mu; the node has reported the loss

	standing standing // guarded by claim.mu
	since    uint     // guarded by claim.mu; the round of renewals in which it was regained
}

// An answer is the outcome of one node's call.
type answer struct {
	part     *part
	grant    driver.Grant
	repeated bool
	err      error
}

// A verdict counts the answers of one round.
type verdict struct {
	yes, no, unknown []answer
}

func (v *verdict) add(a answer) {
	switch {
	case a.err == nil:
		v.yes = append(v.yes, a)
	case errors.Is(a.err, driver.ErrBusy), errors.Is(a.err, driver.ErrLost):
		v.no = append(v.no, a)
	default:
		v.unknown = append(v.unknown, a)
	}
}

func (v *verdict) count() int { return len(v.yes) + len(v.no) + len(v.unknown) }

// miss counts the parts that have not answered as unknown, with the error cause. Pass ctx.Err() and
// not context.Cause, which may match ErrLost for another lease.
func (v *verdict) miss(parts []*part, cause error) {
	answered := slices.Concat(v.yes, v.no, v.unknown)
	for _, p := range parts {
		if !slices.ContainsFunc(answered, func(a answer) bool { return a.part == p }) {
			v.unknown = append(v.unknown, answer{part: p, err: cause})
		}
	}
}

// barred reports whether a node has the mark of an owner that was given up.
func (v *verdict) barred() bool {
	return slices.ContainsFunc(v.no, func(a answer) bool { return errors.Is(a.err, driver.ErrBarred) })
}

// split reports whether claims blocked each other: as far as the nodes name holders, nobody holds a
// majority of those that refused.
func (v *verdict) split(majority int) bool {
	holders := make(map[string]int)
	for _, a := range v.no {
		b, ok := errors.AsType[*driver.Busy](a.err)
		if !ok {
			return false
		}
		holders[b.Holder.Owner.Reveal()]++
	}
	most := 0
	for _, n := range holders {
		most = max(most, n)
	}
	return len(v.no) > 0 && most+len(v.unknown) < majority
}

// A NodesError is a call that missed the majority, with the result of each node. Its outcome is
// unknown. It matches the errors of the nodes.
type NodesError struct {
	Call  string  // try, renew, release or raise fence
	Nodes []error // by node; nil: it agreed, or was not needed
}

// Error lists the nodes that did not agree.
func (e *NodesError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s missed the majority", e.Call)
	for i, err := range e.Nodes {
		if err != nil {
			fmt.Fprintf(&b, "; node %d: %v", i+1, err)
		}
	}
	return b.String()
}

// Unwrap returns the nodes' errors except refusals, because the call as a whole was not refused.
// It also omits permanent errors of a minority of the nodes, because the others may recover.
func (e *NodesError) Unwrap() []error {
	var errs []error
	for _, err := range e.Nodes {
		switch {
		case err == nil, errors.Is(err, driver.ErrBusy), errors.Is(err, driver.ErrLost):
		case e.minority(err, driver.ErrCorrupt), e.minority(err, driver.ErrUnsupported), e.minority(err, driver.ErrClosed):
		default:
			errs = append(errs, err)
		}
	}
	return errs
}

// minority reports whether err matches target and the errors of half of the nodes do not.
func (e *NodesError) minority(err, target error) bool {
	if !errors.Is(err, target) {
		return false
	}
	return countIf(e.Nodes, func(other error) bool { return errors.Is(other, target) }) <= len(e.Nodes)/2
}

func countIf[T any](all []T, is func(T) bool) (n int) {
	for _, one := range all {
		if is(one) {
			n++
		}
	}
	return n
}

func (v *verdict) report(call string, nodes int) error {
	e := &NodesError{Call: call, Nodes: make([]error, nodes)}
	for _, a := range slices.Concat(v.no, v.unknown) {
		e.Nodes[a.part.node.number] = a.err
	}
	return e
}
