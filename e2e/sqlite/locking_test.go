package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

func TestSQLitePoolOfOneConnection(t *testing.T) {
	t.Parallel()
	db := openDB(t, lockFile(t))
	db.SetMaxOpenConns(1)
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	holder := claim(t, d, driver.Request{})
	granted(t, holder)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			for range 5 {
				if err := locks.Do(bounded(t), "orders/42", func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		waiter := claim(t, d, driver.Request{Queue: true, Mode: mode})
		refused(t, waiter)
		released(t, waiter)
	}
	released(t, holder)
	all.Wait()
}

func TestSQLiteEvictionReachesTheHolder(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d, operator := openSQLite(t, path), openSQLite(t, path)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		name := fmt.Sprint("mode ", mode)
		holder := claim(t, d, driver.Request{Resource: name, Owner: "the-holder" + name, Mode: mode})
		old := granted(t, holder)
		if err := operator.Evict(bounded(t), name, "the-holder", "x"); !errors.Is(err, driver.ErrLost) {
			t.Errorf("eviction of a part of an owner: %v", err)
		}
		if err := operator.Evict(bounded(t), name, "the-holder"+name, "disk is on fire"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := holder.Renew(bounded(t), time.Minute)
			if !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "evicted: disk is on fire") {
				t.Errorf("Renew: %v; want ErrLost with the reason", err)
			}
		}
		if err := holder.Release(bounded(t), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release: %v; want ErrLost", err)
		}
		st, err := operator.Inspect(bounded(t), name)
		if err != nil || len(st.Holders) > 0 || st.Fence <= old.Fence {
			t.Errorf("Inspect: %+v, %v; want no holder and a fence above %d", st, err, old.Fence)
		}
		if g := granted(t, claim(t, operator, driver.Request{Resource: name})); g.Fence <= st.Fence {
			t.Errorf("fence %d after the eviction's %d", g.Fence, st.Fence)
		}
	}
}

func TestSQLiteDeadWaiterLosesItsPlace(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	holder, dead, next := openSQLite(t, path), openSQLite(t, path), openSQLite(t, path)
	held := claim(t, holder, driver.Request{})
	granted(t, held)
	refused(t, claim(t, dead, driver.Request{Queue: true, Note: "dead"}))
	dead.Close()
	waiter := claim(t, next, driver.Request{Queue: true, Note: "next"})
	refused(t, waiter)
	released(t, held)
	refused(t, waiter) // the dead one's turn
	wins(t, waiter)
}

func TestSQLiteRowsOutliveTheirUse(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	databases.RowsOutliveTheirUse(t, openDB(t, path), openSQLite(t, path))
}

func TestSQLiteFencesGrowAfterLostRows(t *testing.T) {
	t.Parallel()
	db := openDB(t, lockFile(t)+"?_pragma=synchronous(off)")
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	databases.FencesGrowAfterLostRows(t, db, d)
}

func TestSQLiteServesInOrderOfFirstTry(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	drivers := []*sqllock.Driver{openSQLite(t, path), openSQLite(t, path)}
	held := claim(t, drivers[0], driver.Request{})
	granted(t, held)
	const waiters = 10
	order := make(chan int, waiters)
	var all sync.WaitGroup
	for i := range waiters {
		c := claim(t, drivers[i%2], driver.Request{Queue: true})
		refused(t, c)
		all.Go(func() {
			wins(t, c)
			order <- i
			released(t, c)
		})
	}
	released(t, held)
	all.Wait()
	close(order)
	for want := range waiters {
		if got, ok := <-order; got != want || !ok {
			t.Errorf("waiter %d was served as number %d", got, want)
		}
	}
}

// Nothing is written when a lease ends by itself: the watcher must find out all the same.
func TestSQLiteExpiryWakes(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // in which a busy machine has the waiter refused
	path := lockFile(t)
	granted(t, claim(t, openSQLite(t, path), driver.Request{TTL: ttl}))
	waiter := claim(t, openSQLite(t, path), driver.Request{Queue: true})
	busy := refused(t, waiter)
	if busy.Retry <= 0 || busy.Retry > ttl {
		t.Errorf("Retry %v; want what is left of the lease", busy.Retry)
	}
	select {
	case <-busy.Wake:
	case <-time.After(ttl + margin):
		t.Fatal("not woken")
	}
	granted(t, waiter)
}

func TestSQLiteListsByBytes(t *testing.T) {
	t.Parallel()
	d := openSQLite(t, lockFile(t))
	names := []string{"A", "a", "a%", "a%b", "a_", "ab", "a\U0010ffff", "\u00e9", "e\u0301"}
	for _, name := range names {
		granted(t, claim(t, d, driver.Request{Resource: name}))
	}
	for _, prefix := range []string{"", "a", "a%", "a_", "A", "\u00e9", "b"} {
		var want, got []string
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		states, _, err := d.List(bounded(t), prefix, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			got = append(got, st.Resource)
		}
		if !slices.Equal(got, want) {
			t.Errorf("List(%q): %q; want %q", prefix, got, want)
		}
	}
}

// A row that somebody has damaged is an error of its own, and hides no other.
func TestSQLiteListWithDamagedRows(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	db := openDB(t, path)
	d := newSQLite(t, db, nil)
	if err := d.Migrate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"claims", "fine", "kind", "last"} {
		granted(t, claim(t, d, driver.Request{Resource: name}))
	}
	mustExec(t, db, "UPDATE leasehold_locks SET record = '{\"v\":1,\"claims\":' WHERE name = 'claims'",
		"UPDATE leasehold_locks SET record = x'ff00' WHERE name = 'last'",
		"UPDATE leasehold_locks SET fence = 'text' WHERE name = 'kind'")
	states, _, err := d.List(bounded(t), "", "", 1000)
	shown := ""
	for _, st := range states {
		shown += fmt.Sprint(st.Resource, len(st.Holders), " ")
	}
	if !errors.Is(err, driver.ErrCorrupt) || shown != "claims1 fine1 last1 " {
		t.Errorf("List: %s, %v; want ErrCorrupt, and all that can be told", shown, err)
	}
	for _, name := range []string{"claims", "fine", "kind", "last"} {
		if named := err != nil && strings.Contains(err.Error(), `"`+name+`"`); named != (name != "fine") {
			t.Errorf("%s is named as damaged: %v, by %v", name, named, err)
		}
		if _, err := d.Inspect(bounded(t), name); errors.Is(err, driver.ErrCorrupt) != (name != "fine") {
			t.Errorf("Inspect of %s: %v", name, err)
		}
	}
}

// keepFile has nobody else write to a file until open is called.
func keepFile(t *testing.T, path string) (open func()) {
	t.Helper()
	db := openDB(t, path+"?_pragma=busy_timeout(60000)")
	conn, err := db.Conn(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(bounded(t), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(bounded(t), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		conn.Close()
		db.Close()
	}
}

// A connection that went back to the pool inside a transaction would keep everybody out.
func TestSQLiteCancelledCallsLeaveNoTransaction(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	other := openSQLite(t, path)
	db := openDB(t, path)
	db.SetMaxOpenConns(1)
	d := newSQLite(t, db, nil)
	granted(t, claim(t, other, driver.Request{Resource: "held"}))
	cancelled := 0
	for i := range 300 {
		c := claim(t, d, driver.Request{Resource: []string{"held", "free"}[i%2], Queue: true})
		open := func() {}
		if i%10 == 0 { // nothing is written before it is cancelled
			open = keepFile(t, path)
		}
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(time.Millisecond))
		if _, err := c.Try(ctx); err != nil && ctx.Err() != nil {
			cancelled++
		}
		cancel()
		open()
		if err := c.Release(bounded(t), driver.End{}); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release: %v", err)
		}
		check := claim(t, other, driver.Request{})
		granted(t, check)
		released(t, check)
	}
	if cancelled < 30 {
		t.Errorf("%d calls were cancelled", cancelled)
	}
	st, err := other.Inspect(bounded(t), "free")
	if err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("Inspect: %+v, %v; want nothing left behind", st, err)
	}
}

// An application that writes for long holds up grants, which end with their context,
// also where the connections were opened to wait for longer.
func TestSQLiteLongWriteByOthers(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"", "?_busy_timeout=60000&_txlock=immediate"} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			longWriteByOthers(t, options)
		})
	}
}

func longWriteByOthers(t *testing.T, options string) {
	path := lockFile(t)
	openSQLite(t, path)
	d := openSQLite(t, path+options)
	held := claim(t, d, driver.Request{Resource: "held", Owner: "database is locked"})
	granted(t, held)
	conn, err := openDB(t, path).Conn(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(bounded(t), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	c := claim(t, d, driver.Request{Queue: true})
	start := time.Now()
	for call, do := range map[string]func(ctx context.Context) error{
		"Try":     func(ctx context.Context) error { _, err := c.Try(ctx); return err },
		"Renew":   func(ctx context.Context) error { _, err := held.Renew(ctx, time.Minute); return err },
		"Release": claimtest.Release(held),
		"Evict":   func(ctx context.Context) error { return d.Evict(ctx, "held", "database is locked", "no reason") },
		"Try shared": func(ctx context.Context) error {
			_, err := claim(t, d, driver.Request{Mode: driver.Shared}).Try(ctx)
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if err := do(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v; want the end of its context", call, err)
		}
		cancel()
	}
	if took := time.Since(start); took > margin {
		t.Errorf("the calls took %v, their contexts 1.5 s", took)
	}
	refused(t, claim(t, d, driver.Request{Resource: "held"})) // needs no write
	if st, err := d.Inspect(bounded(t), "orders/42"); err != nil || len(st.Holders) > 0 {
		t.Errorf("Inspect: %+v, %v; reading goes on", st, err)
	}
	var trying sync.WaitGroup
	var tried error
	trying.Go(func() { _, tried = c.Try(bounded(t)) })
	if _, err := conn.ExecContext(bounded(t), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if trying.Wait(); tried != nil {
		t.Errorf("Try: %v; want a grant once the writer is done", tried)
	}
	if err := d.Evict(bounded(t), "database is locked", "nobody", ""); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Evict: %v; want ErrLost", err)
	}
}

func TestSQLiteClosed(t *testing.T) {
	t.Parallel()
	path := lockFile(t)
	d := openSQLite(t, path)
	granted(t, claim(t, openSQLite(t, path), driver.Request{}))
	waiter := claim(t, d, driver.Request{Queue: true})
	busy := refused(t, waiter)
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-busy.Wake:
	case <-time.After(margin):
		t.Error("Close woke nobody")
	}
	_, try := waiter.Try(bounded(t))
	_, renew := waiter.Renew(bounded(t), time.Minute)
	_, claimed := d.Claim(driver.Request{})
	for call, err := range map[string]error{"Try": try, "Renew": renew, "Release": waiter.Release(bounded(t), driver.End{}),
		"Claim": claimed, "Migrate": d.Migrate(bounded(t))} {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s: %v; want ErrClosed", call, err)
		}
	}
}
