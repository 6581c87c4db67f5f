// Package linear checks histories of clients whose links fail for linearizability.
package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// A lockOp is an operation of a client, for the checker. A call whose grant is not certain is left
// out: it delays others but allows them nothing.
type lockOp struct {
	kind  string // acquire, release or expire
	owner string
	token uint64
	uses  int // how much of limit
}

// limit is how much may be used at once. An exclusive lease uses all of it.
const limit = 4

// lockState is the state of a lock as a sequential machine: its holders use no more than the limit,
// and tokens grow.
type lockState struct {
	owners string // each in brackets, in the order of their grants
	used   int
	token  uint64
}

// leaseModel returns that machine, for an engine with or without tokens.
func leaseModel(fencing bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(lockState), input.(lockOp)
			owner := "[" + op.owner + "]"
			if op.kind == "acquire" {
				return s.used+op.uses <= limit && (op.token > s.token || !fencing), lockState{s.owners + owner, s.used + op.uses, op.token}
			}
			before, after, holds := strings.Cut(s.owners, owner)
			return holds, lockState{before + after, s.used - op.uses, s.token}
		},
		DescribeOperation: func(input, _ any) string {
			op := input.(lockOp)
			return fmt.Sprintf("%s %s %d, uses %d of %d", op.kind, driver.ShortOwner(op.owner), op.token, op.uses, limit)
		},
	}
}

// A register collects the operations on one name. It has one name only, so that the checker stays
// fast.
type register struct {
	history locktest.History
	mu      sync.Mutex
	start   time.Time
	ops     []porcupine.Operation // guarded by mu
}

func (r *register) add(client int, op lockOp, call, back time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{
		ClientId: client, Input: op, Call: call.Sub(r.start).Nanoseconds(), Return: back.Sub(r.start).Nanoseconds(),
	})
}

// farOff is later than any other instant of a test.
const farOff = time.Hour

// A client locks a name again and again, in a process whose link sometimes fails.
type client struct {
	number int
	name   string
	locks  *leasehold.Locker
	link   *locktest.Faulty
	shares bool // it mostly shares the name with others, by weights
	keeps  bool // its Locker keeps leases, and it pauses so that others do not always wait

	wait time.Duration // how long it waits
	ttl  time.Duration
}

// contend makes turns of c until ctx ends. After a turn without a lease it waits longer, and asks for
// a longer one: a busy machine may take longer for an answer than an idle one for all turns.
func (r *register) contend(ctx context.Context, c client) {
	const atLeast, atMost = 300 * time.Millisecond, 30 * time.Second
	c.wait = atLeast
	shortest := c.ttl
	for ctx.Err() == nil {
		if rand.N(4) == 0 {
			op := []locktest.Op{locktest.OpTry, locktest.OpRenew, locktest.OpRelease}[rand.N(3)]
			c.link.Next(op, []locktest.Fault{locktest.LoseReply, locktest.LoseRequest, locktest.HangReply}[rand.N(3)])
		}
		if r.turn(ctx, c) {
			c.wait = max(c.wait/2, atLeast)
		} else {
			c.wait = min(c.wait*2, atMost)
		}
		c.ttl = max(shortest, 2*c.wait)
	}
}

// turn acquires and releases once, and reports whether it was granted a lease.
func (r *register) turn(ctx context.Context, c client) (granted bool) {
	opts, uses := []leasehold.Option{leasehold.Wait(c.wait), leasehold.TTL(c.ttl)}, limit
	if c.shares && rand.N(8) > 0 {
		uses = 1 + rand.N(3)
		opts = append(opts, leasehold.Limit(limit), leasehold.Weight(uses))
	}
	called := time.Now()
	lease, err := c.locks.Acquire(ctx, c.name, opts...)
	if err != nil {
		return false
	}
	op := lockOp{"acquire", holderOf(lease), lease.Token(), uses}
	r.add(c.number, op, called, time.Now())
	believed := r.history.Believe
	if uses < limit {
		believed = func(lease *leasehold.Lease) func() { return r.history.BelieveShared(lease, limit, uses, called) }
	}
	done := believed(lease)
	time.Sleep(rand.N(5 * time.Millisecond))
	done()
	r.end(ctx, c.number, lease, op)
	if c.keeps && rand.N(2) > 0 {
		time.Sleep(rand.N(50 * time.Millisecond))
	}
	return true
}

// holderOf distinguishes leases of one grant. Without fencing they have the same token.
func holderOf(lease *leasehold.Lease) string {
	return fmt.Sprintf("%s %d %p", lease.Owner(), lease.Token(), lease)
}

// end releases the lease that op acquired. If the lease was lost, or its release has an unknown
// outcome, it ends at the engine at some later time.
func (r *register) end(ctx context.Context, client int, lease *leasehold.Lease, op lockOp) {
	op.kind = "release"
	called := time.Now()
	err := lease.Release(context.WithoutCancel(ctx))
	switch {
	case err == nil:
		r.add(client, op, called, time.Now())
	case errors.Is(err, leasehold.ErrLost):
		op.kind = "expire"
		r.add(client, op, lease.Deadline(), r.start.Add(farOff))
	default:
		op.kind = "expire"
		r.add(client, op, called, r.start.Add(farOff))
	}
}

// Check runs clients over several names. It gives their histories to porcupine and to
// [locktest.History]. A result "unknown" of porcupine is a failure too. If the engine has Keeps,
// leases of one name are kept. If it has weights, two names are shared by weights. Each call of
// open represents another process. Check takes five seconds, or two in the short lane, and longer
// on a busy machine.
func Check(t testing.TB, open func(t testing.TB) driver.Driver) { CheckOf(t, 100, open) }

// CheckOf is Check with at least enough operations, for an engine that is slow when many clients
// want one name.
func CheckOf(t testing.TB, enough int, open func(t testing.TB) driver.Driver) {
	const clients = 4
	const longest = 3 * time.Minute
	span := 5 * time.Second
	if testing.Short() { // all of it is processor time
		span = 2 * time.Second
	}
	run := fmt.Sprint(rand.Uint64())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var registers []*register
	var work sync.WaitGroup
	var features driver.Features
	for number := range clients {
		link := locktest.NewFaulty(open(t))
		t.Cleanup(func() { link.Close() })
		features = link.Features()
		o := leasehold.Options{TTL: max(700*time.Millisecond, features.MinTTL)}
		locks := locker(t, link, o)
		keeping := locks
		if o.Keep = 200 * time.Millisecond; features.Keeps {
			keeping = locker(t, link, o)
		}
		for i, c := range []client{
			{locks: locks}, {locks: keeping, keeps: features.Keeps}, {locks: locks, shares: features.Weights}, {locks: locks, shares: features.Weights},
		} {
			if i == len(registers) {
				registers = append(registers, &register{start: time.Now()})
			}
			r := registers[i]
			c.number, c.name, c.link, c.ttl = number, fmt.Sprint(run, "/", i), link, o.TTL
			work.Go(func() { r.contend(ctx, c) })
		}
	}
	start := time.Now()
	for time.Since(start) < span || operations(registers) < enough && time.Since(start) < longest {
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	work.Wait()
	for i, r := range registers {
		if res := porcupine.CheckOperationsTimeout(leaseModel(features.Fencing), r.ops, 30*time.Second); res != porcupine.Ok {
			t.Errorf("name %d: %d operations: %s", i, len(r.ops), res)
		}
		if err := r.history.Check(); err != nil {
			t.Errorf("name %d: %v", i, err)
		}
	}
	total := operations(registers)
	t.Logf("%d operations in %v", total, time.Since(start))
	if total < enough {
		t.Errorf("only %d operations in %v", total, longest)
	}
}

func locker(t testing.TB, link *locktest.Faulty, o leasehold.Options) *leasehold.Locker {
	l, err := leasehold.New(link, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func operations(all []*register) (n int) {
	for _, r := range all {
		r.mu.Lock()
		n += len(r.ops)
		r.mu.Unlock()
	}
	return n
}
