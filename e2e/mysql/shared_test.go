package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

const (
	// fewAlone is how many calls of a kind send statements of their own. Others then share one.
	fewAlone = 8
	// mostRounds bounds how often calls are made at once, which a busy machine may have share no statement.
	mostRounds = 100
)

// A sharer watches the statements of a driver.
type sharer struct {
	mu   sync.Mutex
	each func(text string, args []sqldriver.NamedValue) (wait <-chan struct{}) // guarded by mu; nil: they pass
}

func (s *sharer) before(text string, args []sqldriver.NamedValue) {
	s.mu.Lock()
	var wait <-chan struct{}
	if s.each != nil {
		wait = s.each(text, args)
	}
	s.mu.Unlock()
	if wait != nil {
		<-wait
	}
}

// share makes the calls at once, each about the name, while as many calls are in flight as may go alone, held in
// statements that contain alone. It reports whether one statement that contains shared is about all of names. If so,
// before is called before that one and each later one.
func (s *sharer) share(alone string, few []func() error, shared string, calls map[string]func() error, before func(text string)) (errs map[string]error, joined bool) {
	held, full, free := 0, make(chan struct{}), make(chan struct{})
	open := sync.OnceFunc(func() { close(free) })
	s.mu.Lock()
	s.each = func(text string, args []sqldriver.NamedValue) <-chan struct{} {
		if held < fewAlone && strings.Contains(text, alone) {
			if held++; held == fewAlone {
				close(full)
			}
			return free
		}
		if !joined && strings.Contains(text, shared) {
			joined = true
			for name := range calls {
				joined = joined && strings.Contains(fmt.Sprintf("%s", args[0].Value), `"`+name+`"`)
			}
			open()
		}
		if joined {
			before(text)
		}
		return nil
	}
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, call := range few {
		all.Go(func() { _ = call() })
	}
	<-full
	errs = make(map[string]error)
	var mu sync.Mutex // guards errs
	for name, call := range calls {
		all.Go(func() {
			err := call()
			mu.Lock()
			defer mu.Unlock()
			errs[name] = err
		})
	}
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each = nil
	return errs, joined
}

func tryOf(t *testing.T, c driver.Claim) func() error {
	return func() error { _, err := c.Try(t.Context()); return err }
}

func releaseOf(t *testing.T, c driver.Claim) func() error {
	return func() error { return c.Release(t.Context(), driver.End{}) }
}

// A call that shares a statement with others is granted the lease for its TTL, although its owner holds the resource by
// another claim for less, and that statement passes over the row.
func TestMySQLGrantedTogetherForTheTTL(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		stranger := opened(t, m.DSN())
		var s sharer
		d := watchedWithArgs(t, m, s.before)
		claim := func(d driver.Driver, name string, ttl time.Duration) driver.Claim {
			return claimtest.New(t, d, driver.Request{Resource: name, Owner: name + "'s", TTL: ttl})
		}
		for round := range mostRounds {
			held, free := fmt.Sprint("held ", round), fmt.Sprint("free ", round)
			var few []driver.Claim
			var tries []func() error
			for i := range fewAlone {
				few = append(few, claim(d, fmt.Sprint("few ", i), time.Minute))
				tries = append(tries, tryOf(t, few[i]))
			}
			for _, c := range append(few, claim(d, held, time.Minute), claim(d, free, time.Minute)) { // so that the driver knows their rows
				claimtest.Granted(t, c)
				claimtest.Released(t, c)
			}
			claimtest.Granted(t, claim(stranger, held, 5*time.Second))
			calls := make(map[string]func() error)
			for _, name := range []string{held, free} {
				calls[name] = tryOf(t, claim(d, name, time.Minute))
			}
			errs, joined := s.share("VALUES (?, LAST_INSERT_ID(", tries, "GREATEST(l.fence + 1", calls, func(string) {})
			for _, c := range few {
				claimtest.Released(t, c)
			}
			for name, err := range errs {
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if !joined {
				continue
			}
			st, err := stranger.Inspect(t.Context(), held)
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Left < 30*time.Second {
				t.Errorf("granted for a minute: %+v, %v", st, err)
			}
			return
		}
		t.Errorf("no statement was for both in %d rounds", mostRounds)
	})
}

// Releases that share a statement succeed even if another session has since locked a row or acquired a resource. A release
// of a resource that has waiters uses a statement of its own.
func TestMySQLReleasedTogetherBesideOthers(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		m := start(t)
		stranger := opened(t, m.DSN())
		var s sharer
		d := watchedWithArgs(t, m, s.before)
		held := func(name string) driver.Claim {
			c := claimtest.New(t, d, driver.Request{Resource: name, Owner: "me", TTL: time.Minute})
			claimtest.Granted(t, c)
			return c
		}
		for round := range mostRounds {
			var few []func() error
			for i := range fewAlone {
				few = append(few, releaseOf(t, held(fmt.Sprint("few ", i))))
			}
			waited, locked, taken := fmt.Sprint("waited for ", round), fmt.Sprint("locked ", round), fmt.Sprint("taken ", round)
			calls := make(map[string]func() error)
			for _, name := range []string{waited, locked, taken} {
				calls[name] = releaseOf(t, held(name))
			}
			other := func(name string) driver.Claim {
				return claimtest.New(t, stranger, driver.Request{Resource: name, Owner: "other", TTL: time.Minute, Queue: true})
			}
			waiter := other(waited)
			claimtest.Refused(t, waiter)
			tx, err := stranger.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			asked := false
			errs, joined := s.share("SET rev = rev + 1, owner = ''", few, "SET l.owner = '', l.expires = 0", calls, func(text string) {
				if !strings.HasPrefix(text, "SELECT l.name, r.owner, CASE") {
					return
				}
				asked = true
				_, taking := other(taken).Try(context.Background())
				_, locking := tx.ExecContext(context.Background(), "SELECT name FROM leasehold_locks WHERE name = ? FOR UPDATE", locked)
				if err := errors.Join(taking, locking); err != nil {
					t.Error(err)
				}
			})
			if err := errors.Join(tx.Rollback(), waiter.Release(t.Context(), driver.End{})); err != nil {
				t.Error(err)
			}
			for name, err := range errs {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if joined != asked {
				t.Errorf("all share a statement: %v; the driver asks which leases it has ended: %v", joined, asked)
			}
			if joined || t.Failed() {
				return
			}
		}
		t.Errorf("no statement was for all in %d rounds", mostRounds)
	})
}
