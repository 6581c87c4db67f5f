package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
)

// An owner is a claim that counts calls of Wanted.
type owner struct {
	driver.Claim
	ttl    time.Duration
	wanted atomic.Int64
}

// asks is a claim that wants to know of others; tweak may change its request.
func asks(t testing.TB, d driver.Driver, resource string, tweak func(*driver.Request)) *owner {
	t.Helper()
	var o owner
	req := driver.Request{Resource: resource, Owner: fmt.Sprint("owner-", time.Now().UnixNano()), TTL: time.Minute, Wanted: func() { o.wanted.Add(1) }}
	if tweak != nil {
		tweak(&req)
	}
	c := claimtest.New(t, d, req)
	o.Claim, o.ttl = c, req.TTL
	return &o
}

func (o *owner) granted(t testing.TB) {
	t.Helper()
	claimtest.Granted(t, o)
}

func (o *owner) refused(t testing.TB) {
	t.Helper()
	claimtest.Refused(t, o)
}

func (o *owner) renewed(t testing.TB) {
	t.Helper()
	if _, err := o.Renew(t.Context(), o.ttl); err != nil {
		t.Fatalf("Renew: %v", err)
	}
}

// told waits until Wanted has been called, by a message: nobody renews.
func (o *owner) told(t testing.TB, why string) {
	t.Helper()
	claimtest.Eventually(t, "Wanted called: "+why, func() bool { return o.wanted.Load() > 0 })
	o.wanted.Store(0)
}

// waits has a claim without Wanted queue.
func waits(t testing.TB, d driver.Driver, resource string) *owner {
	t.Helper()
	o := asks(t, d, resource, func(req *driver.Request) { req.Queue, req.Wanted = true, nil })
	o.refused(t)
	return o
}

// served is a driver on a service of d.
func served(t testing.TB, d driver.Driver) driver.Driver {
	t.Helper()
	s, err := serve.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(func() { s.Drain(); web.Close(); s.Close() })
	through, err := httplock.Connect(t.Context(), web.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { through.Close() })
	return through
}

// listens waits until somebody receives messages over connections of that name.
func listens(t testing.TB, p *servers.Postgres, name string) {
	t.Helper()
	claimtest.Eventually(t, name+" listens", func() bool {
		return p.Must(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle' AND application_name = '"+name+"'") == "1"
	})
}

// listening has d listen, by connections of that name. It looks for nothing that it has missed but of the resource "first".
func listening(t testing.TB, p *servers.Postgres, d driver.Driver, name string) {
	t.Helper()
	asks(t, d, "first", nil).granted(t)
	listens(t, p, name)
}

// A place that comes while the holder's Listener has no connection is found once it has one again.
func TestPostgresRecallsAfterASilence(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	proxy := servers.StartProxy(t, p.Addr())
	d := opened(t, p.URL(), strings.Replace(as(p, "holder"), p.Addr(), proxy.Addr(), 1))
	other := opened(t, p.URL(), "")
	listening(t, p, d, "holder")
	proxy.Dark()
	proxy.Reset()
	holders := [2]*owner{asks(t, d, "x", nil), asks(t, d, "y", nil)}
	for _, o := range holders {
		o.granted(t)
	}
	waits(t, other, "x")
	time.Sleep(50 * time.Millisecond) // for a call that should not come
	if n := holders[0].wanted.Load(); n > 0 {
		t.Errorf("Wanted was called %d times over a dark link", n)
	}
	holders[0].renewed(t)
	if n := holders[0].wanted.Swap(0); n != 1 {
		t.Errorf("Wanted was called %d times with the answer to a renewal; want once", n)
	}

	proxy.Pass()
	holders[0].told(t, "it listens again")
	if n := holders[1].wanted.Load(); n > 0 {
		t.Errorf("Wanted was called %d times of a resource that nobody waits for", n)
	}
}

// What a holder's process was sent while it stood still reaches it when it goes on, unless its lease has ended.
func TestPostgresRecallsWhoStoodStill(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	proxy := servers.StartProxy(t, p.Addr())
	d := opened(t, p.URL(), strings.Replace(as(p, "holder"), p.Addr(), proxy.Addr(), 1))
	other := opened(t, p.URL(), "")
	listening(t, p, d, "holder")
	holder, brief := asks(t, d, "x", nil), asks(t, d, "brief", func(req *driver.Request) { req.TTL = 2 * time.Second })
	holder.granted(t)
	brief.granted(t)
	proxy.Dark()
	waits(t, other, "brief")
	waits(t, other, "x")
	time.Sleep(brief.ttl) // it ends
	proxy.Pass()
	holder.told(t, "it goes on")
	if n := brief.wanted.Load(); n > 0 {
		t.Errorf("Wanted was called %d times after the end of its lease", n)
	}
}

// A waiter that has died recalls nobody once its place does not count.
func TestPostgresDeadWaiterRecallsNobody(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d, other := opened(t, p.URL(), as(p, "holder")), opened(t, p.URL(), "")
	listening(t, p, d, "holder")
	holder := asks(t, d, "x", nil)
	holder.granted(t)
	waits(t, other, "x")
	holder.told(t, "it has queued")
	if err := other.Driver.Close(); err != nil { // its place stays
		t.Fatal(err)
	}
	holder.renewed(t)
	holder.told(t, "its place counts")
	p.Must(t, "UPDATE leasehold_beats SET ends = 0")
	holder.renewed(t)
	if n := holder.wanted.Load(); n > 0 {
		t.Errorf("Wanted was called %d times for a waiter that has died", n)
	}
}

// A place whose statement comes behind the one that grants, on a row that somebody has locked: that began before the grant was
// there.
func TestPostgresRecallsFromBehindTheGrant(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d, other := opened(t, p.URL(), p.URL()), opened(t, p.URL(), "")
	blocked := func(n int) {
		t.Helper()
		claimtest.Eventually(t, fmt.Sprint(n, " statements wait for a row"), func() bool {
			return p.Must(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == fmt.Sprint(n)
		})
	}
	// try has o ask until the row decides: a waiter is answered from memory until its driver has looked.
	try := func(o *owner, want error) <-chan error {
		done := make(chan error, 1)
		go func() {
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				if _, err := o.Try(t.Context()); errors.Is(err, want) || time.Now().After(end) {
					done <- err
					return
				}
			}
		}()
		return done
	}
	lock := func() *sql.Tx {
		t.Helper()
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("SELECT FROM leasehold_locks WHERE name = 'x' FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	former := asks(t, other, "x", nil)
	former.granted(t)
	// A place: the next one is granted by its own statement.
	holder := asks(t, d, "x", func(req *driver.Request) { req.Queue = true })
	holder.refused(t)
	p.Must(t, "UPDATE leasehold_locks SET expires = 0, owner = ''") // and nobody is told
	tx := lock()
	granting := try(holder, nil)
	blocked(1)
	behind := asks(t, other, "x", func(req *driver.Request) { req.Queue, req.Wanted = true, nil })
	queueing := try(behind, driver.ErrBusy)
	blocked(2)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-granting; err != nil {
		t.Fatalf("Try: %v; want a grant", err)
	}
	if err := <-queueing; !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try behind: %v; want busy", err)
	}
	holder.told(t, "another came behind the grant")
}

// A holder is recalled by the server that has taken over.
func TestPostgresRecallsAfterAFailover(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	opened(t, p.URL(), "")
	s := p.StartStandby(t)
	url := strings.Replace(p.URL(), p.Addr(), p.Addr()+","+s.Addr(), 1) + "&target_session_attrs=read-write"
	d, other := opened(t, url, url+"&application_name=holder"), opened(t, url, "")
	holder := asks(t, d, "x", nil)
	holder.granted(t)
	claimtest.Eventually(t, "the standby has it", func() bool {
		n, err := s.Ask("SELECT count(*) FROM leasehold_locks WHERE name = 'x' AND recall <> 0")
		return err == nil && n == "1"
	})
	p.Kill()
	s.Must(t, "SELECT pg_promote()")
	listens(t, s, "holder")
	waiter := asks(t, other, "x", func(req *driver.Request) { req.Queue, req.Wanted = true, nil })
	claimtest.Eventually(t, "it waits", func() bool { _, err := waiter.Try(t.Context()); return errors.Is(err, driver.ErrBusy) })
	holder.told(t, "a waiter has queued")
}

// Nobody is sent anything while no holder asks, nor for what one held that asked.
func TestPostgresRecallsCostOthersNothing(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d, other := opened(t, p.URL(), p.URL()), opened(t, p.URL(), "")
	marked := func() string { return p.Must(t, "SELECT abs(recall) > 1 FROM leasehold_locks WHERE name = 'x'") }
	queued := func(req *driver.Request) { req.Queue = true }
	silent := func(req *driver.Request) { req.Wanted = nil }
	shared := func(req *driver.Request) { req.Mode = driver.Shared }
	for _, mode := range []func(*driver.Request){nil, shared} {
		one := asks(t, d, "x", mode)
		one.granted(t)
		if marked() != "t" {
			t.Error("a holder that asks has left no mark")
		}
		waiter := waits(t, other, "x")
		claimtest.Released(t, one)
		claimtest.Eventually(t, "the waiter is granted", func() bool { _, err := waiter.Try(t.Context()); return err == nil })
		if marked() != "f" {
			t.Error("a mark is left to a holder that was queued and does not ask")
		}
		claimtest.Released(t, waiter)
		asks(t, d, "x", mode).granted(t)
		p.Must(t, "UPDATE leasehold_locks SET owner = '', expires = 0, crowd = 0, record = '{\"v\":1}'")
		next := asks(t, d, "x", silent)
		next.granted(t)
		if marked() != "f" {
			t.Error("a mark is left to a holder that does not ask")
		}
		last := asks(t, d, "x", queued)
		last.refused(t)
		claimtest.Released(t, next)
		claimtest.Eventually(t, "the last one is granted", func() bool { _, err := last.Try(t.Context()); return err == nil })
		if marked() != "t" {
			t.Error("a holder that asks and was queued has left no mark")
		}
		claimtest.Released(t, last)
	}
}

// Tables of version 3 are brought up to date while a program of that version goes on: it is waited for, and tells of its
// places by renewals.
func TestPostgresRecallsBesideVersion3(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	for _, file := range []string{"postgres.sql", "postgres-3.sql"} {
		schema, err := os.ReadFile("../../engine/sqllock/schema/" + file)
		if err != nil {
			t.Fatal(err)
		}
		p.Must(t, "BEGIN;"+strings.ReplaceAll(string(schema), "{p}", "leasehold_")+";COMMIT")
	}
	d := opened(t, p.URL(), p.URL()) // and migrated
	holder := asks(t, d, "x", nil)
	holder.granted(t)
	p.Must(t, `INSERT INTO leasehold_beats VALUES ('former', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 7000000, 1);
		UPDATE leasehold_locks SET rev = rev + 1, tail = fence + 1, crowd = expires WHERE name = 'x';
		INSERT INTO leasehold_places (name, seq, owner, proc, mode, lim, wants, note)
			SELECT 'x', tail, 'waiter', 'former', 0, 0, 60000000, '' FROM leasehold_locks`)
	holder.renewed(t)
	holder.told(t, "a program of the former version waits")
	claimtest.Released(t, holder)
	if got := p.Must(t, "SELECT owner || ' ' || recall FROM leasehold_locks"); got != "waiter 0" {
		t.Errorf("after the release: %q; want the waiter to hold, and no mark", got)
	}
}

// Many leases that are granted, renewed or given back by one statement leave marks and are told as others are.
func TestPostgresRecallsInBatches(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	config, err := pgx.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	var batches atomic.Int64
	config.Tracer = before(func(text string) {
		if strings.Contains(text, "->> 'note'") {
			batches.Add(1)
		}
	})
	l, err := pglisten.New(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	made, err := sqllock.NewPostgres(db, &sqllock.Options{Listen: l})
	d := databases.Migrated(t, databases.Store{Driver: made, DB: db}, err)
	other := opened(t, p.URL(), "")

	const many = 64
	holders := make([]*owner, many)
	each := func(call func(i int) error) {
		t.Helper()
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				if err := call(i); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	for round := 0; batches.Load() == 0; round++ {
		if round == 100 {
			t.Fatal("no batch")
		}
		if round > 0 {
			each(func(i int) error { return holders[i].Release(t.Context(), driver.End{}) })
		}
		each(func(i int) error {
			holders[i] = asks(t, d, fmt.Sprint("own/", i), func(req *driver.Request) { req.Owner = fmt.Sprint("owner/", round, "/", i) })
			_, err := holders[i].Try(t.Context())
			return err
		})
	}
	marks := func() string {
		return p.Must(t, "SELECT count(*) FROM leasehold_locks WHERE owner <> '' AND abs(abs(recall) - expires) < 1000000")
	}
	if got := marks(); got != fmt.Sprint(many) {
		t.Errorf("%s of %d leases have a mark for as long as they last", got, many)
	}
	silent := asks(t, d, "silent", func(req *driver.Request) { req.Wanted = nil })
	silent.granted(t)
	waits(t, other, "silent")
	for i, o := range holders {
		if i%2 == 0 {
			waits(t, other, fmt.Sprint("own/", i))
			o.told(t, "a waiter has queued")
		}
	}
	renewals := []driver.Renewal{{Claim: silent.Claim, TTL: 2 * time.Minute}}
	for _, o := range holders {
		renewals = append(renewals, driver.Renewal{Claim: o.Claim, TTL: 2 * time.Minute})
	}
	d.RenewAll(t.Context(), renewals)
	for i, o := range holders {
		if err := renewals[i+1].Err; err != nil {
			t.Errorf("RenewAll: %v", err)
		}
		if n := o.wanted.Load(); (n > 0) != (i%2 == 0) {
			t.Errorf("own/%d: Wanted was called %d times with the answer to RenewAll", i, n)
		}
	}
	if got := marks(); got != fmt.Sprint(many) {
		t.Errorf("%s of %d leases have a mark for as long as they last, after RenewAll", got, many)
	}
}

// Of places that come for a holder to whom one notice is enough one message is sent, and none if its grant says that others
// wait. A renewal begins anew. Who shares with one that wants each notice is sent each.
func TestPostgresTellsOnce(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d, other := opened(t, p.URL(), p.URL()), opened(t, p.URL(), "")
	l, err := pglisten.New(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	messages, ended := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Listen(ctx, "leasehold_wake", func(m string) { messages <- m })
	}()
	defer func() { cancel(); <-ended }()
	<-messages // it listens
	sent := func(want int, why string) {
		t.Helper()
		p.Must(t, "NOTIFY leasehold_wake, 'end'") // it comes after all that was committed
		got := 0
		for m := range messages {
			if m == "end" {
				break
			}
			if strings.HasPrefix(m, "wanted ") {
				got++
			}
		}
		if got != want {
			t.Errorf("%d messages that a place has come; want %d: %s", got, want, why)
		}
	}
	once := func(req *driver.Request) { req.WantedOnce, req.Queue = true, true }
	each := func(req *driver.Request) { req.Queue = true }
	released := func(o *owner) {
		t.Helper()
		claimtest.Released(t, o)
	}
	for name, tc := range map[string]struct {
		how        func(*driver.Request)
		all, renew int // messages of three places, and of two after a renewal
	}{"once": {once, 1, 1}, "each": {each, 3, 2}} {
		holder := asks(t, d, name, tc.how)
		holder.granted(t)
		next := asks(t, d, name, tc.how)
		next.refused(t)
		waits(t, other, name)
		waits(t, other, name)
		sent(tc.all, name+": after a grant")
		holder.told(t, "others have queued")
		holder.renewed(t)
		waits(t, other, name)
		waits(t, other, name)
		sent(tc.renew, name+": after a renewal")
		released(holder)
		next.told(t, "its grant says that others wait")
		waits(t, other, name)
		sent(tc.all/3, name+": after a grant that says so")

		former, alone := asks(t, other, name+"/alone", nil), asks(t, d, name+"/alone", tc.how)
		former.granted(t)
		alone.refused(t)
		released(former)
		sent(0, name+": nobody has come yet")
		for range 3 {
			waits(t, other, name+"/alone")
		}
		sent(tc.all, name+": after a grant by a release, with nobody behind")
		alone.told(t, "others have queued")
	}
	through := served(t, d)
	for name, tc := range map[string]struct {
		how  func(*driver.Request)
		want int
	}{"once": {once, 1}, "each": {each, 5}} {
		holder := asks(t, through, "served/"+name, tc.how)
		holder.granted(t)
		for range 5 {
			waits(t, other, "served/"+name)
		}
		sent(tc.want, name+": of five places, to a holder behind the service")
		holder.told(t, "others have queued")
	}
	sharers := func(how func(*driver.Request)) func(*driver.Request) {
		return func(req *driver.Request) { how(req); req.Mode, req.Queue = driver.Shared, false }
	}
	asks(t, d, "shared", sharers(once)).granted(t)
	asks(t, d, "shared", sharers(each)).granted(t)
	asks(t, d, "shared", sharers(once)).granted(t)
	waits(t, other, "shared")
	waits(t, other, "shared")
	sent(2, "one who shares wants to know of each")
}
