package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/dialled"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/record"
)

// patience is how long a call waits before it tries another connection.
var patience = new(links.Links).Patience()

// A site is a server of PostgreSQL that a connection may lead to.
type site struct {
	mu    sync.Mutex
	moved bool          // guarded by mu: new connections lead to the primary
	made  int           // guarded by mu; connections
	asked int           // guarded by mu; statements that were run at the former primary
	slow  time.Duration // of the former primary's answers, which succeed then; 0: it reports that it is read-only
	late  time.Duration // before it reports that it is read-only

	holds  []record.Claim // what the primary's row has
	record string         // guarded by mu; the last that the primary's row was written with
	renews []string       // guarded by mu; the lists of the renewals at the primary
}

func (p *site) Connect(context.Context) (sqldriver.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	l := &lead{site: p, astray: !p.moved}
	l.script.answer = l.answers
	return l, nil
}

func (*site) Driver() sqldriver.Driver { return nil }

func (p *site) move() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = true
}

// A lead is a connection that leads to one of the servers.
type lead struct {
	script
	site   *site
	astray bool
}

func (l *lead) answers(ctx context.Context, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
	l.site.mu.Lock()
	astray := l.astray
	if astray {
		l.site.asked++
	}
	slow := l.site.slow
	l.site.mu.Unlock()
	if astray && slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	} else if astray {
		time.Sleep(l.site.late)
		return nil, stateError("25006")
	}
	switch {
	case strings.HasPrefix(text, "SELECT"):
		return rowOf("x", l.site.holds...), nil
	case len(args) == 10: // it writes the row
		l.site.mu.Lock()
		defer l.site.mu.Unlock()
		l.site.record = args[7].Value.(string)
	case strings.HasPrefix(text, "WITH gone AS (DELETE"):
		return nil, nil // there is no place
	case strings.HasPrefix(text, "WITH r AS"): // it renews
		l.site.mu.Lock()
		defer l.site.mu.Unlock()
		l.site.renews = append(l.site.renews, args[0].Value.(string))
		return [][]sqldriver.Value{{"x", "me", int64(7)}}, nil
	}
	return [][]sqldriver.Value{{int64(7)}}, nil
}

func (l *lead) Ping(ctx context.Context) error { return nil }
func (*lead) PrepareContext(context.Context, string) (sqldriver.Stmt, error) {
	return nil, errors.ErrUnsupported
}
func (*lead) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) {
	return nil, errors.ErrUnsupported
}
func (*lead) ResetSession(context.Context) error          { return nil }
func (*lead) CheckNamedValue(*sqldriver.NamedValue) error { return nil }

// at returns a driver on a pool with idle connections to p.
func at(t *testing.T, p *site, db *sql.DB, idle int) *Driver {
	t.Helper()
	db.SetMaxIdleConns(idle)
	d, err := NewPostgres(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	var on runner = db
	d.checked.Store(&on)
	t.Cleanup(func() {
		d.Close()
		db.Close()
	})
	var all []*sql.Conn
	for range idle {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	for _, conn := range all {
		conn.Close()
	}
	time.Sleep(time.Millisecond) // so that they are older than what follows
	return d
}

func try(t *testing.T, d *Driver, within time.Duration) error {
	ctx, stop := context.WithTimeout(t.Context(), within)
	defer stop()
	_, err := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute}).Try(ctx)
	return err
}

// Ten idle connections lead to the former primary. The first call after the name has moved
// succeeds. Before that, only a few connections are given up per second.
func TestNoCallStaysWithTheFormerPrimary(t *testing.T) {
	t.Parallel()
	const idle = 10
	for name, open := range map[string]func(p *site) *sql.DB{
		"ours":     func(p *site) *sql.DB { return dialled.Open(p) },
		"a caller": func(p *site) *sql.DB { return sql.OpenDB(p) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := new(site)
			d := at(t, p, open(p), idle)
			for range 100 { // a second
				if err := try(t, d, time.Second); !errors.Is(err, ErrReadOnly) {
					t.Fatalf("%s: Try at the former primary: %v; want ErrReadOnly", name, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if most := idle + int(time.Second/doubtEvery)*(idle+1); p.made > most {
				t.Errorf("%s: %d connections were made within a second; want %d at most", name, p.made, most)
			}
			time.Sleep(doubtEvery)
			p.move()
			p.asked = 0
			if err := try(t, d, time.Second); err != nil {
				t.Errorf("%s: the first Try after the name has moved: %v", name, err)
			}
			if p.asked > idle+1 {
				t.Errorf("%s: it asked %d times at the former primary; want no more than %d connections", name, p.asked, idle+1)
			}
		})
	}
}

// A Try is repeated if its connection is dead, but not if the server is slow.
func TestDeadConnectionsAreToldFromSlowStatements(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: never}
		d := at(t, p, dialled.Open(p), 4)
		p.move()
		start := time.Now()
		if err := try(t, d, 5*time.Second); err != nil {
			t.Errorf("Try: %v", err)
		}
		if took := time.Since(start); took > 2*patience {
			t.Errorf("Try took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: 4 * patience}
		d := at(t, p, dialled.Open(p), 4)
		answersOthers(t, d, patience/2, 5*patience)
		if err := try(t, d, 5*patience); err != nil {
			t.Errorf("Try: %v", err)
		}
		if p.asked != 1 {
			t.Errorf("a slow statement was sent %d times", p.asked)
		}
	})
}

// A renewal is repeated if its connection is dead.
func TestRenewalsOverDeadConnectionsAreMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
		c.holds(7, time.Minute)
		p.move()
		ctx, stop := context.WithTimeout(t.Context(), 2*patience)
		defer stop()
		if _, err := c.Renew(ctx, time.Minute); err != nil {
			t.Errorf("Renew: %v", err)
		}
	})
}

// A shared renewal is repeated without the callers that have left. They may have renewed for less
// since.
func TestRepeatedRenewalsOmitWhoHasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		p.move()
		var all sync.WaitGroup
		defer all.Wait()
		renew := func(resource, owner string, ttl, within time.Duration) {
			c := claimed(t, d, driver.Request{Resource: resource, Owner: owner, TTL: time.Minute})
			c.holds(7, time.Minute)
			all.Go(func() {
				ctx, stop := context.WithTimeout(t.Context(), within)
				defer stop()
				if _, err := c.Renew(ctx, ttl); (err == nil) != (resource == "x") {
					t.Errorf("Renew of %q: %v", resource, err)
				}
			})
			synctest.Wait()
		}
		renew("hung", "me", time.Minute, patience/4) // so that the others share a statement
		renew("gone", "me", time.Hour, patience*4/5)
		renew("x", "me", time.Minute, 5*patience)
		all.Wait()
		if len(p.renews) != 1 || strings.Contains(p.renews[0], "gone") || !strings.Contains(p.renews[0], `"x"`) {
			t.Errorf("renewed %q; want x alone", p.renews)
		}
	})
}

// A Release is repeated if its connection is dead, but not if the server is slow. If the second
// attempt finds the lease over, the first may have ended it.
func TestReleasesOverDeadConnectionsAreMadeAgain(t *testing.T) {
	t.Parallel()
	for from, found := range map[phase]error{held: nil, queued: driver.ErrLost, idle: driver.ErrLost} {
		for _, slow := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := &site{slow: time.Hour}
				d := at(t, p, dialled.Open(p), 4)
				c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
				if c.holds(7, time.Minute); from != held {
					c.moves(nil, from)
				}
				p.move()
				want, within := errMaybeReleased, 2*patience
				if slow {
					p.slow = 4 * patience
					want, within = found, time.Minute
					answersOthers(t, d, patience/2, 30*patience)
				}
				ctx, stop := context.WithTimeout(t.Context(), within)
				defer stop()
				if err := c.Release(ctx, driver.End{}); !errors.Is(err, want) || c.phase != over {
					t.Errorf("in phase %d, slow %v: %v, in phase %d; want %v", from, slow, err, c.phase, want)
				}
			})
		}
	}
}

// A refused Try without a place is not released. If it was made again, its first attempt may still be
// served, so the refusal writes the row: a late grant then finds a mark, and a late write another row.
func TestRefusalsKeepFirstAttemptsOut(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{exclusive, shared} {
		synctest.Test(t, func(t *testing.T) {
			p := &site{slow: time.Hour, holds: []record.Claim{one("other", exclusive, record.Holding, 1_001_000)}}
			d := at(t, p, dialled.Open(p), 4)
			p.move()
			c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", Mode: mode, TTL: time.Minute})
			if _, err := c.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try: %v; want ErrBusy", err)
			}
			if p.record == "" {
				t.Fatalf("mode %v: refused without a write of the row", mode)
			}
			rec, err := record.Decode([]byte(p.record))
			if err != nil {
				t.Fatal(err)
			}
			marked := slices.ContainsFunc(rec.Claims, func(c record.Claim) bool { return c.Owner == "me" && c.Status == record.Gone })
			if marked != (mode == exclusive) || c.uncertain() {
				t.Errorf("mode %v: marked %v, still uncertain %v", mode, marked, c.uncertain())
			}
		})
	}
}

// answersOthers answers other calls repeatedly during a test.
func answersOthers(t *testing.T, d *Driver, every, lasts time.Duration) {
	var all sync.WaitGroup
	all.Go(func() {
		for range lasts / every {
			d.lanes.Answered(nil)
			time.Sleep(every)
		}
	})
	t.Cleanup(all.Wait)
}

// Calls that were in flight when another call got the last answer of all are repeated too.
func TestCallsBesideTheLastAnswerAreRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		p.move()
		time.AfterFunc(time.Millisecond, func() { d.lanes.Answered(nil) })
		start := time.Now()
		if err := try(t, d, 5*time.Second); err != nil {
			t.Errorf("Try: %v", err)
		}
		if took := time.Since(start); took > 2*patience {
			t.Errorf("Try took %v", took)
		}
	})
}

// A refused connection is no answer of the server: calls beside it are still repeated.
func TestRefusedConnectionsAreNoAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		p.move()
		refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
		for i := range 20 {
			time.AfterFunc(time.Duration(i)*patience/4, func() {
				_ = d.retry(t.Context(), nil, func(runner) error { return refused })
			})
		}
		start := time.Now()
		if err := try(t, d, 5*time.Second); err != nil {
			t.Errorf("Try: %v", err)
		}
		if took := time.Since(start); took > 2*patience {
			t.Errorf("Try took %v", took)
		}
		time.Sleep(5 * patience)
	})
}

// A renewal without an answer condemns the connections of that time, including unused ones.
func TestCallsWithoutAnAnswerCondemnConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", TTL: time.Minute})
		c.holds(7, time.Minute)
		p.move()
		for i := range 2 {
			ctx, stop := context.WithTimeout(t.Context(), patience)
			_, _, err := d.number(ctx, d.texts.save)
			stop()
			if (err == nil) != (i == 1) {
				t.Errorf("call %d: %v", i, err)
			}
		}
	})
}

// After a quick answer to any call, such as a renewal, calls are as impatient as before connections
// were condemned.
func TestQuickAnswersMakeImpatientAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		p.move()
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		if _, _, err := d.number(ctx, d.texts.save); err == nil {
			t.Fatal("a call over a dead connection was answered")
		}
		if _, _, err := d.number(t.Context(), d.texts.save); err != nil {
			t.Fatal(err)
		}
		if now := d.doubt.calls().Patience(); now != patience {
			t.Errorf("after a quick answer calls wait for %v, want %v", now, patience)
		}
	})
}

// While others get answers, a call that is given up condemns no connections. Otherwise all
// connections to a slow server would be opened again and again.
func TestSlowCallsCondemnNoConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{slow: time.Hour}
		d := at(t, p, dialled.Open(p), 4)
		answersOthers(t, d, patience/3, 10*patience)
		for range 8 {
			ctx, stop := context.WithTimeout(t.Context(), patience)
			_, _, err := d.number(ctx, d.texts.save)
			stop()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call without an answer: %v", err)
			}
		}
		if p.made != 4 {
			t.Errorf("%d connections were made; want 4", p.made)
		}
	})
}

// Calls that learn at the same time that their connections lead astray all move to new ones.
func TestCallsBesideEachOtherLeaveTheFormerPrimary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &site{late: time.Millisecond}
		d := at(t, p, dialled.Open(p), 8)
		p.move()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				c := claimed(t, d, driver.Request{Resource: "x", Owner: string(rune('a' + i)), TTL: time.Minute})
				if _, err := c.Try(t.Context()); err != nil {
					t.Errorf("Try: %v", err)
				}
			})
		}
		all.Wait()
	})
}

// A caller's pool may have a single connection. If that leads to a standby, Migrate says so at once,
// and does not wait for the connection that it has itself.
func TestMigrateOnASingleConnectionSaysThatItLeadsAstray(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(script{func(_ context.Context, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if strings.HasPrefix(text, "SELECT max(version)") {
				return nil, stateError("42P01") // no such table
			}
			return nil, stateError("25006")
		}})
		defer db.Close()
		db.SetMaxOpenConns(1)
		d, err := NewPostgres(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		start := time.Now()
		if err := d.Migrate(ctx); !errors.Is(err, ErrReadOnly) || time.Since(start) > time.Second {
			t.Errorf("Migrate: %v after %v; want ErrReadOnly", err, time.Since(start))
		}
	})
}
