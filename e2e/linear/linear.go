// Package linear gives histories of clients whose links fail to a linearizability checker.
package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// A lockOp is what a client did, for the checker. What a client only asked for, and did
// not get for certain, is left out: it delays others and allows them nothing.
type lockOp struct {
	kind  string // acquire, release or expire
	owner string
	token uint64
}

// lockState is a lease as a sequential machine: one holder, tokens that grow.
type lockState struct {
	owner string
	token uint64
}

// leaseModel is that machine, on an engine that has tokens or not.
func leaseModel(fencing bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(lockState), input.(lockOp)
			if op.kind == "acquire" {
				return s.owner == "" && (op.token > s.token || !fencing), lockState{op.owner, op.token}
			}
			return s.owner == op.owner, lockState{token: s.token}
		},
		DescribeOperation: func(input, _ any) string {
			op := input.(lockOp)
			return fmt.Sprintf("%s %s %d", op.kind, driver.ShortOwner(op.owner), op.token)
		},
	}
}

// A register collects operations. One a name, so that the checker stays fast.
type register struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation // guarded by mu
}

func (r *register) add(client int, op lockOp, call, back time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{
		ClientId: client, Input: op, Call: call.Sub(r.start).Nanoseconds(), Return: back.Sub(r.start).Nanoseconds(),
	})
}

// farOff is later than every other instant of a test.
const farOff = time.Hour

// contend has one client take turns on name until ctx ends, over a link that fails now
// and then.
func (r *register) contend(ctx context.Context, client int, l *leasehold.Locker, link *locktest.Faulty, name string) {
	for ctx.Err() == nil {
		if rand.N(4) == 0 {
			op := []locktest.Op{locktest.OpTry, locktest.OpRenew, locktest.OpRelease}[rand.N(3)]
			link.Next(op, []locktest.Fault{locktest.LoseReply, locktest.LoseRequest, locktest.HangReply}[rand.N(3)])
		}
		called := time.Now()
		lease, err := l.Acquire(ctx, name, leasehold.Wait(300*time.Millisecond))
		if err != nil {
			continue
		}
		r.add(client, lockOp{"acquire", holderOf(lease), lease.Token()}, called, time.Now())
		time.Sleep(rand.N(5 * time.Millisecond))
		r.end(ctx, client, lease)
	}
}

// holderOf tells hand-overs of one grant apart, which without fencing share their token.
func holderOf(lease *leasehold.Lease) string {
	return fmt.Sprintf("%s %d %p", lease.Owner(), lease.Token(), lease)
}

// end gives the lease up. A lease that was lost, or whose release has an unknown outcome,
// ends at the engine at some later time.
func (r *register) end(ctx context.Context, client int, lease *leasehold.Lease) {
	op := lockOp{"release", holderOf(lease), lease.Token()}
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

// Check runs clients over several names and gives their history to the
// checker, for which "unknown" is a failure too. Each call of open is one more process's
// view of the same engine. It takes five seconds, two in the short lane, and longer on a busy machine.
func Check(t testing.TB, open func(t testing.TB) driver.Driver) { CheckOf(t, 100, open) }

// CheckOf is Check of an engine that is slow when many want one name: with at least that many operations.
func CheckOf(t testing.TB, enough int, open func(t testing.TB) driver.Driver) {
	const names, clients = 4, 4
	const longest = 3 * time.Minute
	span := 5 * time.Second
	if testing.Short() { // all of it is processor time
		span = 2 * time.Second
	}
	var registers [names]*register
	for i := range registers {
		registers[i] = &register{start: time.Now()}
	}
	run := fmt.Sprint(rand.Uint64())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work sync.WaitGroup
	var features driver.Features
	for client := range clients {
		link := locktest.NewFaulty(open(t))
		features = link.Features()
		l, err := leasehold.New(link, &leasehold.Options{TTL: max(700*time.Millisecond, features.MinTTL)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			l.Close()
			link.Close()
		})
		for i, r := range registers {
			work.Go(func() { r.contend(ctx, client*names+i, l, link, fmt.Sprint(run, "/", i)) })
		}
	}
	start := time.Now()
	for time.Since(start) < span || operations(registers[:]) < enough && time.Since(start) < longest {
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	work.Wait()
	for i, r := range registers {
		if res := porcupine.CheckOperationsTimeout(leaseModel(features.Fencing), r.ops, 30*time.Second); res != porcupine.Ok {
			t.Errorf("name %d: %d operations: %s", i, len(r.ops), res)
		}
	}
	total := operations(registers[:])
	t.Logf("%d operations in %v", total, time.Since(start))
	if total < enough {
		t.Errorf("only %d operations in %v", total, longest)
	}
}

func operations(all []*register) (n int) {
	for _, r := range all {
		r.mu.Lock()
		n += len(r.ops)
		r.mu.Unlock()
	}
	return n
}
