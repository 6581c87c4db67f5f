package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// serializable is a server whose transactions are serializable unless they say otherwise.
func serializable(t testing.TB) *servers.Postgres {
	return servers.StartPostgres(t, "default_transaction_isolation=serializable")
}

// The server sees conflicts where there are none, of rows that share a page: those who are
// in nobody's way are never refused for it, and keep what they hold.
func TestPostgresSerializableByDefault(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("pooled=%t", pooled), func(t *testing.T) {
			if pooled {
				servers.Long(t, "all processors for as long as the leases last: without a pooler, too")
			}
			p := serializable(t)
			opened(t, p.URL(), "")
			address := p.URL()
			if pooled {
				address = servers.StartPgBouncer(t, p, 10).URL()
			}
			ownNames(t, func() databases.Store { return opened(t, address, "") })
		})
	}
}

// ownNames has two processes' worth of goroutines take names of their own, beside one that
// holds many leases, until each would have ended several times, or once in the short lane.
func ownNames(t *testing.T, open func() databases.Store) {
	const many, ttl = 200, 6 * time.Second
	keeper := databases.Locker(t, open(), leasehold.Options{TTL: ttl})
	var kept []*leasehold.Lease
	for i := range many {
		var opts []leasehold.Option
		if i%10 == 0 {
			opts = append(opts, leasehold.Shared())
		}
		lease, err := keeper.TryAcquire(t.Context(), fmt.Sprint("kept/", i), opts...)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, lease)
	}
	var all sync.WaitGroup
	var turns atomic.Int64
	span := 3 * ttl
	if testing.Short() { // all of it is processor time
		span = ttl * 3 / 2
	}
	end := time.Now().Add(span)
	for range 2 {
		l := databases.Locker(t, open(), leasehold.Options{TTL: ttl, HandOver: -1})
		for i := range 4 {
			all.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					var opts []leasehold.Option
					if i%2 == 0 {
						opts = append(opts, leasehold.Shared())
					}
					lease, err := l.TryAcquire(t.Context(), fmt.Sprintf("own/%p/%d/%d", l, i, n%20), opts...)
					if err != nil {
						t.Errorf("TryAcquire of an own name: %v", err)
						return
					}
					turns.Add(1)
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d leases", turns.Load())
	for _, lease := range kept {
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release of what was kept: %v", err)
		}
	}
}

func TestPostgresSerializableLockedRows(t *testing.T) {
	t.Parallel()
	databases.LockedRowsHoldUpNoOthers(t, serverOf(serializable(t)))
}

// A stop is a program that is stopped when its lock statement was done, but not committed.
type stop struct {
	inside  atomic.Bool
	here    chan struct{} // closes when it stands
	release chan struct{}
}

func (s *stop) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.inside.Store(s.inside.Load() || q.SQL == "begin isolation level read committed")
	return context.WithValue(ctx, s, q.SQL)
}

func (s *stop) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if text, _ := ctx.Value(s).(string); s.inside.Load() && strings.Contains(text, "leasehold_locks") {
		close(s.here)
		<-s.release
	}
}

// What could not be serialized is repeated in a transaction that the database ends, should
// the process be stopped inside: others wait for it for a second or so, not for ever.
func TestPostgresStoppedInsideTransaction(t *testing.T) {
	t.Parallel()
	p := serializable(t)
	other := opened(t, p.URL()+"&default_transaction_isolation=read%20committed", "")
	take := func(d driver.Driver, owner string) (driver.Claim, error) {
		c, err := d.Claim(driver.Request{Resource: "x", Owner: owner, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Try(t.Context())
		return c, err
	}
	c, err := take(other, "first") // makes the row
	if err != nil {
		t.Fatal(err)
	}
	claimtest.Released(t, c)
	config, err := pgx.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	s := &stop{here: make(chan struct{}), release: make(chan struct{})}
	config.Tracer = s
	db := stdlib.OpenDB(*config)
	stopped, err := sqllock.NewPostgres(db, nil)
	d := databases.Opened(t, databases.Store{Driver: stopped, DB: db}, err)
	tx, err := other.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE leasehold_locks SET note = 'x' WHERE name = 'x'"); err != nil {
		t.Fatal(err)
	}
	tried := make(chan error, 1)
	go func() {
		_, err := take(d, "stopped")
		tried <- err
	}()
	claimtest.Eventually(t, "the statement waits for the row", func() bool { return p.Must(t, "SELECT count(*) FROM pg_locks WHERE NOT granted") != "0" })
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.here:
	case err := <-tried:
		t.Fatalf("Try: %v, and no transaction of its own", err)
	case <-time.After(time.Minute):
		t.Fatal("Try does not end")
	}
	start := time.Now()
	if _, err := take(other, "second"); err != nil {
		t.Errorf("Try beside one that is stopped: %v; want a grant", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Try beside one that is stopped took %v", took)
	}
	close(s.release)
	if err := <-tried; err == nil {
		t.Error("there are two holders")
	}
}
