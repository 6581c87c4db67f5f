package postgres

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// A pool in transaction mode hands each statement to another connection. Nobody listens
// here: waiters poll. The suite's cases that count goroutines or measure are left to the
// suite itself.
func TestPgBouncerConformance(t *testing.T) {
	servers.Long(t, "the suite runs without a pooler")
	t.Parallel()
	p := servers.StartPostgres(t)
	opened(t, p.URL(), "")
	h := harness(p, servers.StartPgBouncer(t, p, 2).URL())
	const not = locktest.NeedPause | locktest.NeedRestart | locktest.NeedLossNotice
	for _, c := range locktest.Cases() {
		if c.Needs&^locktest.NeedAddress != 0 && c.Needs&not == 0 && !c.Alone {
			t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
		}
	}
}

func TestPgBouncerStorm(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	opened(t, p.URL(), "")
	b := servers.StartPgBouncer(t, p, 2)
	for _, listen := range []string{p.URL(), ""} {
		lockers := databases.Lockers(t, 6, func() databases.Store { return opened(t, b.URL(), listen) })
		databases.Storm(t, lockers, 2*time.Second, time.Second, databases.Nothing, databases.None)
	}
}

// The client's own statements, prepared by name, are what does not work: an error, no lock.
func TestPgBouncerPreparedStatements(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	b := servers.StartPgBouncer(t, p, 2)
	url, _, _ := strings.Cut(b.URL(), "&")
	var all sync.WaitGroup
	var pooled atomic.Int64
	for i := range 8 {
		d := opened(t, b.URL(), "")
		bad, err := open(url, "")
		bad = databases.Opened(t, bad, err)
		all.Go(func() {
			for j := range 20 {
				name := fmt.Sprint("prepared/", i, "/", j)
				c, err := bad.Claim(driver.Request{Resource: name, Owner: "somebody", TTL: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				_, err = c.Try(t.Context())
				state, err2 := d.Inspect(t.Context(), name)
				if err2 != nil || (err == nil) != (len(state.Holders) == 1) {
					t.Errorf("Try: %v; the resource: %+v, %v", err, state, err2)
				}
				if errors.Is(err, sqllock.ErrPooled) {
					pooled.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d attempts met another connection", pooled.Load())
}

// A statement meets a connection that it was not prepared on.
func TestPgBouncerPreparedElsewhere(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	opened(t, p.URL(), "")
	b := servers.StartPgBouncer(t, p, 2)
	url, _, _ := strings.Cut(b.URL(), "&")
	take := func() (leave func()) { // one of the pool's two connections
		s, err := open(b.URL(), "")
		tx, err2 := databases.Opened(t, s, err).DB.BeginTx(t.Context(), nil)
		if err2 != nil {
			t.Fatal(err2)
		}
		if _, err := tx.ExecContext(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	}
	leave := take()
	s, err := open(url, "")
	bad := databases.Opened(t, s, err)
	if err := databases.Try(t, bad, "prepared/here"); err != nil { // on the other connection
		t.Fatal(err)
	}
	defer take()()
	leave()
	if err := databases.Try(t, bad, "prepared/elsewhere"); !errors.Is(err, sqllock.ErrPooled) {
		t.Errorf("Try: %v; want ErrPooled", err)
	}
}
