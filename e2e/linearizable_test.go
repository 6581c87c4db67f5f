package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
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

var leaseModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(lockState), input.(lockOp)
		if op.kind == "acquire" {
			return s.owner == "" && op.token > s.token, lockState{op.owner, op.token}
		}
		return s.owner == op.owner, lockState{token: s.token}
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(lockOp)
		return fmt.Sprintf("%s %s %d", op.kind, driver.ShortOwner(op.owner), op.token)
	},
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
		r.add(client, lockOp{"acquire", lease.Owner() + fmt.Sprint(lease.Token()), lease.Token()}, called, time.Now())
		time.Sleep(rand.N(5 * time.Millisecond))
		r.end(ctx, client, lease)
	}
}

// end gives the lease up. A lease that was lost, or whose release has an unknown outcome,
// ends at the engine at some later time.
func (r *register) end(ctx context.Context, client int, lease *leasehold.Lease) {
	op := lockOp{"release", lease.Owner() + fmt.Sprint(lease.Token()), lease.Token()}
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

// checkLinearizable runs clients over several names and gives their history to the
// checker, for which "unknown" is a failure too.
func checkLinearizable(t *testing.T, open func(t testing.TB) driver.Driver) {
	const names, clients = 4, 4
	var registers [names]*register
	for i := range registers {
		registers[i] = &register{start: time.Now()}
	}
	run := fmt.Sprint(rand.Uint64())
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	var work sync.WaitGroup
	for client := range clients {
		link := locktest.NewFaulty(open(t))
		l, err := leasehold.New(link, &leasehold.Options{TTL: 700 * time.Millisecond})
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
	work.Wait()
	total := 0
	for i, r := range registers {
		total += len(r.ops)
		if res := porcupine.CheckOperationsTimeout(leaseModel, r.ops, 30*time.Second); res != porcupine.Ok {
			t.Errorf("name %d: %d operations: %s", i, len(r.ops), res)
		}
	}
	t.Logf("%d operations", total)
	if total < 100 {
		t.Errorf("only %d operations in 5 seconds", total)
	}
}

func TestMemoryIsLinearizable(t *testing.T) {
	server := memory.NewServer()
	checkLinearizable(t, func(testing.TB) driver.Driver { return server.Connect() })
}

func TestSQLiteIsLinearizable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	openSQLite(t, path)
	checkLinearizable(t, func(t testing.TB) driver.Driver { return openSQLite(t, path) })
}

func TestRedisIsLinearizable(t *testing.T) {
	r := servers.StartRedis(t)
	checkLinearizable(t, func(t testing.TB) driver.Driver {
		d, err := openRedisAddress("single," + r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

func TestRedlockIsLinearizable(t *testing.T) {
	nodes := startNodes(t, 3)
	checkLinearizable(t, func(t testing.TB) driver.Driver { return openRedlock(t, nodes, -1) })
}

// The checker must be able to say no.
func TestCheckerRejectsTwoHoldersAndOldTokens(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for name, ops := range map[string][]struct {
		op   lockOp
		call int
		back int
	}{
		"two holders": {{lockOp{"acquire", "a", 1}, 0, 1}, {lockOp{"acquire", "b", 2}, 2, 3}, {lockOp{"release", "a", 1}, 4, 5}},
		"old token":   {{lockOp{"acquire", "a", 2}, 0, 1}, {lockOp{"release", "a", 2}, 2, 3}, {lockOp{"acquire", "b", 1}, 4, 5}},
	} {
		r := register{start: at(0)}
		for i, o := range ops {
			r.add(i, o.op, at(o.call), at(o.back))
		}
		if porcupine.CheckOperations(leaseModel, r.ops) {
			t.Errorf("%s: accepted", name)
		}
	}
}
