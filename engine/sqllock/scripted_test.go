package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/dialled"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A script answers statements by their texts, in place of a database.
type script struct {
	answer func(ctx context.Context, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error)
}

func (s script) Connect(context.Context) (sqldriver.Conn, error) { return s, nil }
func (script) Driver() sqldriver.Driver                          { return nil }
func (script) Prepare(string) (sqldriver.Stmt, error)            { return nil, errors.ErrUnsupported }
func (s script) Begin() (sqldriver.Tx, error)                    { return s, nil }
func (script) Commit() error                                     { return nil }
func (script) Rollback() error                                   { return nil }
func (script) Close() error                                      { return nil }

func (s script) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	all, err := s.answer(ctx, text, args)
	return &answers{all}, err
}

func (s script) ExecContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	all, err := s.answer(ctx, text, args)
	return sqldriver.RowsAffected(len(all)), err
}

type answers struct{ rows [][]sqldriver.Value }

func (a *answers) Columns() []string {
	if len(a.rows) == 0 {
		return nil
	}
	return make([]string, len(a.rows[0]))
}

func (*answers) Close() error { return nil }

func (a *answers) Next(dest []sqldriver.Value) error {
	if len(a.rows) == 0 {
		return io.EOF
	}
	copy(dest, a.rows[0])
	a.rows = a.rows[1:]
	return nil
}

// scripted returns a Driver on PostgreSQL whose statements answer answers.
func scripted(t *testing.T, answer func(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error)) *Driver {
	t.Helper()
	var d *Driver
	db := sql.OpenDB(script{func(ctx context.Context, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		return answer(ctx, d, text, args)
	}})
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
	return d
}

func claimed(t *testing.T, d *Driver, req driver.Request) *claim {
	t.Helper()
	c, err := d.Claim(req)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*claim)
}

// rowOf returns the answer about one resource at the instant 1000.
func rowOf(name string, claims ...record.Claim) [][]sqldriver.Value {
	rec := record.Record{Fence: 7, Claims: claims}
	return [][]sqldriver.Value{{int64(1000), int64(1000), name, int64(7), "", int64(0), int64(0), "", int64(3), int64(0), string(rec.Encode()), int64(0), int64(0), "[]"}}
}

// A dead connection may be the only one: no poll keeps it for long.
func TestPollsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		polls := make(chan time.Duration, 100)
		d := scripted(t, func(ctx context.Context, _ *Driver, _ string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			start := time.Now()
			<-ctx.Done()
			polls <- time.Since(start)
			return nil, ctx.Err()
		})
		d.watch.arm(&driver.Request{Resource: "x", Owner: "waiter"}, nil, boottime.Now())
		for range 3 {
			select {
			case took := <-polls:
				if took > keepPlace {
					t.Errorf("a poll took %v", took)
				}
			case <-time.After(10 * keepPlace):
				t.Fatal("a poll goes on and on")
			}
		}
	})
}

// A new waiter makes the watcher look soon, but does not postpone the look for others.
func TestJoinsDoNotPutOffPolls(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0 // by the watcher's goroutine
			d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				if text == d.texts.state {
					looks++
				}
				if fails {
					return nil, errors.New("no answer")
				}
				return rowOf("x", one("", exclusive, record.Lingering, 1_001_000)), nil
			})
			const joins = 1000
			for i := range joins {
				d.watch.arm(&driver.Request{Resource: "x", Owner: string(rune('a' + i))}, nil, boottime.Now())
				time.Sleep(time.Millisecond)
			}
			d.watch.close()
			least, most := joins/20, joins/int(serverPace.first/time.Millisecond)
			if fails {
				least, most = 2, 1+int(joins*time.Millisecond/maxBlind)
			}
			if looks < least || looks > most {
				t.Errorf("failing %v: %d looks in %d ms; want %d to %d", fails, looks, joins, least, most)
			}
		})
	}
}

// Leases of different resources that one statement cannot renew are renewed concurrently. Leases of
// the same resource are renewed by one write.
func TestRenewsSharedLeasesSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const trip, names, sharers = 10 * time.Millisecond, 48, 5
		var mu sync.Mutex
		busy, most, writes := 0, 0, 0
		d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			mu.Lock()
			busy++
			most = max(most, busy)
			if text == d.texts.save {
				writes++
			}
			mu.Unlock()
			time.Sleep(trip)
			mu.Lock()
			defer mu.Unlock()
			busy--
			switch text {
			case d.texts.save:
				return [][]sqldriver.Value{{int64(4)}}, nil
			case d.texts.unlocked:
				return [][]sqldriver.Value{{"x"}}, nil
			}
			var all []record.Claim
			for i := range sharers {
				all = append(all, one(string(rune('a'+i)), shared, record.Holding, 1_001_000))
			}
			return rowOf("x", all...), nil
		})
		var renewals []driver.Renewal
		for n := range names {
			for i := range sharers {
				c := claimed(t, d, driver.Request{Resource: string(rune('A' + n)), Owner: string(rune('a' + i)), Mode: shared})
				renewals = append(renewals, driver.Renewal{Claim: c, TTL: time.Minute})
			}
		}
		renewals = append(renewals, driver.Renewal{Claim: claimed(t, d, driver.Request{Resource: "A", Owner: "lost", Mode: shared}), TTL: time.Minute})
		start := time.Now()
		d.RenewAll(t.Context(), renewals)
		for i, r := range renewals {
			if lost := i == len(renewals)-1; lost != errors.Is(r.Err, driver.ErrLost) || !lost && r.Err != nil {
				t.Errorf("renewal %d: %v", i, r.Err)
			}
		}
		if took := time.Since(start); most > maxRows || writes != names || took > (names/maxRows+1)*2*trip {
			t.Errorf("%d at once, %d writes, %v", most, writes, took)
		}
	})
}

// Leases that one statement cannot renew are renewed while it hangs.
func TestHungStatementHoldsUpNoLeasesByRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := scripted(t, func(ctx context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			switch text {
			case d.texts.renewAll:
				<-ctx.Done()
				return nil, ctx.Err()
			case d.texts.save:
				return [][]sqldriver.Value{{int64(4)}}, nil
			case d.texts.unlocked:
				return [][]sqldriver.Value{{"shared"}}, nil
			}
			return rowOf("shared", one("me", shared, record.Holding, 1_001_000)), nil
		})
		start := time.Now()
		renewals := make([]driver.Renewal, 2)
		answered := make([]time.Duration, len(renewals))
		for i, mode := range []driver.Mode{exclusive, shared} {
			c := claimed(t, d, driver.Request{Resource: []string{"hung", "shared"}[i], Owner: "me", Mode: mode})
			c.holds(7, time.Minute)
			renewals[i] = driver.Renewal{Claim: c, TTL: time.Minute, Answered: func() { answered[i] = time.Since(start) }}
		}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		d.RenewAll(ctx, renewals)
		if err := renewals[0].Err; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the renewal that hangs: %v", err)
		}
		if err := renewals[1].Err; err != nil || answered[1] > 0 {
			t.Errorf("the shared lease: %v, answered after %v; want at once", err, answered[1])
		}
	})
}

// A lease whose row was locked for a moment is renewed beside another renewal that hangs.
func TestHungRenewalHoldsUpNoLockedRow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		hung, skipped driver.Mode
	}{
		{"a statement hangs", exclusive, shared},
		{"the statement skips the row, another row hangs", shared, exclusive},
		{"another row hangs", shared, shared},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			d := scripted(t, func(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
				if text == d.texts.save {
					return [][]sqldriver.Value{{int64(4)}}, nil
				}
				locked := time.Since(start) < time.Millisecond
				list := args[0].Value.(string)
				switch hung := strings.Contains(list, "hung"); {
				case text == d.texts.unlocked && hung:
					return [][]sqldriver.Value{{"hung"}}, nil
				case text == d.texts.unlocked && locked, text == d.texts.renewAll && !hung:
					return nil, nil
				case text == d.texts.unlocked:
					return [][]sqldriver.Value{{"locked"}}, nil
				case hung:
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return rowOf("locked", one("me", test.skipped, record.Holding, 1_001_000)), nil
			})
			var answered time.Duration
			lease := func(name string, mode driver.Mode, told func()) driver.Renewal {
				c := claimed(t, d, driver.Request{Resource: name, Owner: "me", Mode: mode})
				c.holds(7, time.Minute)
				return driver.Renewal{Claim: c, TTL: time.Minute, Answered: told}
			}
			renewals := []driver.Renewal{
				lease("hung", test.hung, nil),
				lease("locked", test.skipped, func() { answered = time.Since(start) }),
			}
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			d.RenewAll(ctx, renewals)
			if err := renewals[0].Err; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the renewal that hangs: %v", test.name, err)
			}
			if err := renewals[1].Err; err != nil || answered > time.Second {
				t.Errorf("%s: the lease whose row was locked: %v, answered after %v", test.name, err, answered)
			}
		})
	}
}

// Leases whose rows were locked for a moment share a statement afterwards, too.
func TestRowsThatWereLockedShareAStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases = 100
		start := time.Now()
		var statements, writes atomic.Int64
		d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) (rows [][]sqldriver.Value, err error) {
			if text == d.texts.save {
				writes.Add(1)
				return [][]sqldriver.Value{{int64(4)}}, nil
			}
			locked := time.Since(start) < time.Millisecond
			if text == d.texts.renewAll {
				statements.Add(1)
				var all []request
				err := json.Unmarshal([]byte(args[0].Value.(string)), &all)
				for _, r := range all {
					if !locked {
						rows = append(rows, []sqldriver.Value{r.Name, r.Owner, int64(7)})
					}
				}
				return rows, err
			}
			var names []string
			err = json.Unmarshal([]byte(args[0].Value.(string)), &names)
			for _, name := range names {
				switch {
				case text == d.texts.state:
					rows = append(rows, rowOf(name, one("me", exclusive, record.Holding, 1_001_000))...)
				case !locked:
					rows = append(rows, []sqldriver.Value{name})
				}
			}
			return rows, err
		})
		renewals := make([]driver.Renewal, leases)
		for i := range renewals {
			c := claimed(t, d, driver.Request{Resource: fmt.Sprint(i), Owner: "me"})
			c.holds(7, time.Minute)
			renewals[i] = driver.Renewal{Claim: c, TTL: time.Minute}
		}
		d.RenewAll(t.Context(), renewals)
		for i, r := range renewals {
			if r.Err != nil || r.Grant.TTL != time.Minute {
				t.Errorf("renewal %d: %v, %v", i, r.Grant, r.Err)
			}
		}
		if n, m := statements.Load(), writes.Load(); n != 2 || m > 0 {
			t.Errorf("%d statements about many rows and %d writes, want 2 and none", n, m)
		}
	})
}

// Renewals by row that hang, more than are made at once, do not delay the others.
func TestHungRowsHoldUpNoOthers(t *testing.T) { t.Parallel(); renewsBesideHungRows(t, mostRows, 8) }

// A database that stalls is not asked for a connection for each lease.
func TestStalledRowsTakeFewConnections(t *testing.T) {
	t.Parallel()
	renewsBesideHungRows(t, 5*mostRows, 0)
}

// renewsBesideHungRows renews leases, of which all but those served hang.
func renewsBesideHungRows(t *testing.T, names, served int) {
	synctest.Test(t, func(t *testing.T) {
		const within = 5 * time.Second
		var hang, most atomic.Int64
		d := scripted(t, func(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			if text == d.texts.save {
				return [][]sqldriver.Value{{int64(4)}}, nil
			}
			var asked []string
			if err := json.Unmarshal([]byte(args[0].Value.(string)), &asked); err != nil {
				return nil, err
			}
			if text == d.texts.unlocked {
				var all [][]sqldriver.Value
				for _, name := range asked {
					all = append(all, []sqldriver.Value{name})
				}
				return all, nil
			}
			if strings.HasPrefix(asked[0], "hung") {
				most.Store(max(most.Load(), hang.Add(1)))
				<-ctx.Done()
				hang.Add(-1)
				return nil, ctx.Err()
			}
			return rowOf(asked[0], one("me", shared, record.Holding, 1_001_000)), nil
		})
		start := time.Now()
		renewals := make([]driver.Renewal, names)
		answered := make([]time.Duration, names)
		for i := range renewals {
			name := fmt.Sprint("hung/", i)
			if i < served {
				name = fmt.Sprint("served/", i)
			}
			c := claimed(t, d, driver.Request{Resource: name, Owner: "me", Mode: shared})
			renewals[i] = driver.Renewal{Claim: c, TTL: time.Minute, Answered: func() { answered[i] = time.Since(start) }}
		}
		ctx, stop := context.WithTimeout(t.Context(), within)
		defer stop()
		d.RenewAll(ctx, renewals)
		for i, r := range renewals {
			switch hangs := i >= served; {
			case hangs && !errors.Is(r.Err, context.DeadlineExceeded):
				t.Errorf("renewal %d, which hangs: %v", i, r.Err)
			case !hangs && (r.Err != nil || answered[i] > within/2):
				t.Errorf("renewal %d: %v, answered after %v of %v", i, r.Err, answered[i], within)
			}
		}
		if n := most.Load(); n > mostRows {
			t.Errorf("%d hang at once", n)
		}
	})
}

// A damaged row ends its own lease only, though the statements about many rows fail because of it.
func TestDamagedRowLosesNoOtherLease(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(_ context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		if text == d.texts.save {
			return [][]sqldriver.Value{{int64(4)}}, nil
		}
		var names []string
		if text == d.texts.renewAll || json.Unmarshal([]byte(args[0].Value.(string)), &names) != nil || slices.Contains(names, "damaged") {
			return nil, stateError("XX001")
		}
		if text == d.texts.unlocked {
			return [][]sqldriver.Value{{names[0]}}, nil
		}
		return rowOf(names[0], one("me", exclusive, record.Holding, 1_001_000)), nil
	})
	for _, ttl := range []time.Duration{time.Minute, time.Second} { // one statement lengthens leases; another way shortens them
		var renewals []driver.Renewal
		for _, name := range []string{"one", "damaged", "two"} {
			c := claimed(t, d, driver.Request{Resource: name, Owner: "me", TTL: time.Minute})
			c.holds(7, time.Minute)
			renewals = append(renewals, driver.Renewal{Claim: c, TTL: ttl})
		}
		d.RenewAll(t.Context(), renewals)
		for i, r := range renewals {
			if lost := i == 1; lost != errors.Is(r.Err, driver.ErrLost) || !lost && r.Err != nil {
				t.Errorf("renewal %d for %v: %v", i, ttl, r.Err)
			}
		}
	}
}

// leasing returns a scripted Driver whose leases are renewed by requests, and a function that
// returns a claim with a lease of ttl.
func leasing(t *testing.T, answer func(ctx context.Context, all []request) error) (d *Driver, lease func(resource string, ttl time.Duration) *claim) {
	d = scripted(t, func(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) (rows [][]sqldriver.Value, err error) {
		if text != d.texts.renewAll {
			return nil, fmt.Errorf("not a renewal: %s", text)
		}
		var all []request
		if err := json.Unmarshal([]byte(args[0].Value.(string)), &all); err != nil {
			return nil, err
		}
		for _, r := range all {
			rows = append(rows, []sqldriver.Value{r.Name, r.Owner, int64(7)})
		}
		return rows, answer(ctx, all)
	})
	return d, func(resource string, ttl time.Duration) *claim {
		c := claimed(t, d, driver.Request{Resource: resource, Owner: "me", TTL: ttl})
		c.holds(7, ttl)
		return c
	}
}

// hungHangs is a renewal of leases that hangs if the first one is "hung".
func hungHangs(ctx context.Context, all []request) error {
	if all[0].Name != "hung" {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// A renewal that hangs delays others only for a moment. A closed driver does not wait for it.
func TestHungRenewalHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, lease := leasing(t, hungHangs)
		renew := func(c *claim, within time.Duration) error {
			ctx, stop := context.WithTimeout(t.Context(), within)
			defer stop()
			_, err := c.Renew(ctx, time.Minute)
			return err
		}
		one, other, hung := lease("hung", time.Minute), lease("other", time.Minute), make(chan error, 1)
		go func() { hung <- renew(one, 5*time.Second) }()
		synctest.Wait()
		if err := renew(other, time.Second); err != nil {
			t.Errorf("another lease: %v", err)
		}
		d.Close()
		start := time.Now()
		if err := renew(other, time.Second); !errors.Is(err, driver.ErrClosed) || time.Since(start) > 0 {
			t.Errorf("after Close: %v after %v; want ErrClosed at once", err, time.Since(start))
		}
		if err := <-hung; err == nil {
			t.Error("the renewal that hangs: no error")
		}
	})
}

// A round whose callers have all left sends nothing, so it is no sign that the database answers.
func TestRenewalOfNobodyIsNoAnswer(t *testing.T) {
	t.Parallel()
	d, _ := leasing(t, func(context.Context, []request) error { return nil })
	if err := d.renewCalls(t.Context(), "", func(func(*renewing) bool) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want the error of an ended call", err)
	}
}

// A short lease is renewed beside a renewal that hangs, although its calls have less time than
// others wait for that one.
func TestHungRenewalLosesNoShortLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, lease := leasing(t, hungHangs)
		renew := func(c *claim, within time.Duration) error {
			ctx, stop := context.WithTimeout(t.Context(), within)
			defer stop()
			_, err := c.Renew(ctx, c.lease.ttl)
			return err
		}
		hangs, short, hung := lease("hung", time.Minute), lease("short", 500*time.Millisecond), make(chan error, 1)
		go func() { hung <- renew(hangs, 5*time.Second) }()
		synctest.Wait()
		if err := renew(short, 166*time.Millisecond); err != nil {
			t.Errorf("a short lease: %v", err)
		}
		if err := <-hung; err == nil {
			t.Error("the renewal that hangs: no error")
		}
	})
}

// Renewals that come while a statement renews others share the next one. A lease that two of them
// renew gets the longer TTL.
func TestRenewalsShareAStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const trip, callers = 10 * time.Millisecond, 100
		var mu sync.Mutex
		var sent [][]request
		_, lease := leasing(t, func(_ context.Context, all []request) error {
			mu.Lock()
			sent = append(sent, all)
			mu.Unlock()
			time.Sleep(trip)
			return nil
		})
		start := time.Now()
		var all sync.WaitGroup
		renew := func(c *claim) {
			all.Go(func() {
				if g, err := c.Renew(t.Context(), c.lease.ttl); err != nil || g.TTL != c.req.TTL {
					t.Errorf("%s: %+v, %v", c.req.Resource, g, err)
				}
			})
		}
		renew(lease("first", time.Minute))
		synctest.Wait()
		for i := range callers {
			renew(lease(fmt.Sprint(i), time.Minute))
		}
		renew(lease("twice", time.Hour))
		renew(lease("twice", time.Minute))
		all.Wait()
		if took := time.Since(start); took != 2*trip || len(sent) != 2 {
			t.Fatalf("%d statements in %v; want 2", len(sent), took)
		}
		if n := len(sent[1]); n != callers+1 {
			t.Errorf("%d leases, want %d", n, callers+1)
		}
		for _, r := range sent[1] {
			if r.Name == "twice" && r.TTL != record.Micros(time.Hour) {
				t.Errorf("the lease that two renew gets %d µs", r.TTL)
			}
		}
	})
}

// A renewal whose write had no answer may still arrive. After Release it must have no effect, and
// only another write of the row ensures that.
func TestReleaseStopsLateRenewal(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(c *claim) error{
		"Renew":   func(c *claim) error { _, err := c.Renew(context.Background(), time.Minute); return err },
		"Note":    func(c *claim) error { return c.Note(context.Background(), "") },
		"Release": func(c *claim) error { return c.Release(context.Background(), driver.End{}) },
	} {
		held, answered, writes := true, false, 0
		d := scripted(t, func(_ context.Context, d *Driver, text string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			switch {
			case text == d.texts.unlocked:
				return [][]sqldriver.Value{{"x"}}, nil
			case text == d.texts.leave:
				return nil, nil // no place
			case text != d.texts.save && held:
				return rowOf("x", one("me", shared, record.Holding, 1_001_000)), nil
			case text != d.texts.save:
				return rowOf("x"), nil
			case !answered:
				return nil, errors.New("no answer")
			}
			writes++
			return [][]sqldriver.Value{{int64(4)}}, nil
		})
		c := claimed(t, d, driver.Request{Resource: "x", Owner: "me", Mode: shared})
		if err := call(c); err == nil {
			t.Fatalf("%s: no error", name)
		}
		held, answered = false, true // it has expired
		if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release after %s: %v; want ErrLost", name, err)
		}
		if writes != 1 {
			t.Errorf("Release after %s: %d writes; want 1", name, writes)
		}
	}
}

// Close ends a first call that gets no answer.
func TestCloseEndsAFirstCallThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := scripted(t, func(ctx context.Context, _ *Driver, _ string, _ []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		d.checked.Store(nil)
		first := make(chan error, 1)
		go func() {
			_, err := d.ready(context.Background())
			first <- err
		}()
		synctest.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-first; !errors.Is(err, driver.ErrClosed) {
			t.Errorf("the first call: %v; want ErrClosed", err)
		}
	})
}

// Close waits only for a moment for a first call that hangs and ignores its context. That call ends
// what it has begun.
func TestCloseLeavesAFirstCallThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		d := scripted(t, func(context.Context, *Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
			<-hang
			return nil, errors.New("no answer")
		})
		d.checked.Store(nil)
		first, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := d.ready(context.Background())
			first <- err
		}()
		synctest.Wait()
		go func() { closed <- d.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(2 * mostClosing):
			t.Error("Close waits for the first call")
		}
		close(hang)
		if err := <-first; !errors.Is(err, driver.ErrClosed) {
			t.Errorf("the first call: %v; want ErrClosed", err)
		}
	})
}

// A far is a connection to a server that takes a while to prepare a statement.
type far struct {
	*lead
	takes time.Duration
}

func (f far) Connect(context.Context) (sqldriver.Conn, error) { return f, nil }
func (f far) PrepareContext(ctx context.Context, _ string) (sqldriver.Stmt, error) {
	select {
	case <-time.After(f.takes):
		return stalled{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A sound is a dialect whose check finds nothing wrong.
type sound struct{ dialect }

func (sound) check(context.Context, *sql.DB) error { return nil }

// A first call that has too little time to prepare all statements leaves less to do for the next.
// What the server has prepared meanwhile shows that it answers.
func TestFirstCallsPrepareOnAndOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const takes, within = 100 * time.Millisecond, time.Second
		db := dialled.Open(far{&lead{}, takes})
		defer db.Close()
		d, err := NewMySQL(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.dialect = sound{d.dialect}
		many := 0
		d.texts.each(func(text *string) {
			if *text != "" && text != &d.texts.purge {
				many++
			}
		})
		for try := 1; ; try++ {
			ctx, stop := context.WithTimeout(t.Context(), within)
			_, err := d.ready(ctx)
			stop()
			if err == nil {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) || try > many*int(takes)/int(within)+1 {
				t.Fatalf("call %d: %v", try, err)
			}
			if ago := time.Since(d.doubt.calls().Answers.Last()); ago > takes {
				t.Errorf("call %d: the last answer was %v ago", try, ago)
			}
		}
	})
}

// A stalled is a connection whose prepared statements wait until the test lets them end.
type stalled struct {
	script
	begun, end chan struct{}
}

func (s stalled) Connect(context.Context) (sqldriver.Conn, error) { return s, nil }
func (s stalled) Prepare(string) (sqldriver.Stmt, error)          { return s, nil }
func (stalled) NumInput() int                                     { return -1 }
func (stalled) Query([]sqldriver.Value) (sqldriver.Rows, error)   { return nil, errors.ErrUnsupported }
func (s stalled) Exec(args []sqldriver.Value) (sqldriver.Result, error) {
	close(s.begun)
	<-s.end
	return sqldriver.RowsAffected(1), nil
}

// Close does not wait for a statement that waits for a row, say. Its call may still get its answer.
func TestCloseWaitsForNoStatement(t *testing.T) {
	t.Parallel()
	s := stalled{begun: make(chan struct{}), end: make(chan struct{})}
	db := sql.OpenDB(s)
	defer db.Close()
	d, err := NewMySQL(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.prepare(t.Context(), *d.stmts); err != nil {
		t.Fatal(err)
	}
	var on runner = *d.stmts
	d.checked.Store(&on)
	raised := make(chan error, 1)
	go func() { raised <- d.RaiseFence(context.Background(), "x", 1) }()
	<-s.begun
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Close waits for a statement in flight")
	}
	close(s.end)
	if err := <-raised; err != nil {
		t.Error(err)
	}
}
