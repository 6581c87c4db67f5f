package crowd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// An Order says what a process of a fleet does. The next order makes it begin.
type Order struct {
	URL     string        // of the store
	How     string        // Lead, Own, or the name of a competing library; otherwise each waiter has one turn
	Holds   time.Duration // how long a turn lasts
	TTL     time.Duration // of Leasehold's leases; 0: the usual TTL
	Waiters int           // of this process
}

// News is what a process reports.
type news struct {
	Opened bool  `json:",omitempty"`
	Queued bool  `json:",omitempty"` // all waiters have been refused
	Turn   *Turn `json:",omitempty"`
}

// A Lock has one turn: it waits for the name, calls queued when first refused, and returns a
// function that ends the turn.
type Lock func(ctx context.Context, queued func()) (token uint64, unlock func() error, err error)

// Work is the main function of a process in a fleet of Leasehold. It never returns: the process
// exits at the end of its standard input.
func Work(open func(ctx context.Context, url string) (driver.Driver, error)) {
	WorkWith(func(ctx context.Context, o Order) (func() (Lock, error), error) {
		d, err := open(ctx, o.URL)
		name, made := Name, 0
		return func() (Lock, error) {
			if o.How == Own {
				name = OwnName(made)
				made++
			}
			return leaseholdLock(d, name, o)
		}, err
	})
}

// Lead makes the waiters of a member campaign for leadership; with any other value they acquire the
// lock.
const Lead = "lead"

// Own makes each waiter of a process acquire a lock of its own.
const Own = "own"

// OwnName is the name of the lock that a waiter acquires with Own.
func OwnName(waiter int) string { return fmt.Sprint(Name, waiter) }

// TTL is the usual length of a fleet's leases.
const TTL = 10 * time.Second

// leaseholdLock returns a Lock of a Locker of its own. A leader leads until its process ends.
func leaseholdLock(d driver.Driver, name string, o Order) (Lock, error) {
	var refused func()
	locks, err := leasehold.New(d, &leasehold.Options{TTL: cmp.Or(o.TTL, TTL), HandOver: -1, Trace: func(_ context.Context, e leasehold.Event) {
		if e.Step == leasehold.StepQueued {
			refused()
		}
	}})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, queued func()) (uint64, func() error, error) {
		refused = queued
		if o.How != Lead {
			lease, err := locks.Acquire(ctx, name)
			if err != nil {
				return 0, nil, err
			}
			return lease.Token(), func() error { return lease.Release(ctx) }, nil
		}
		led, ended := make(chan uint64, 1), make(chan error, 1)
		go func() {
			ended <- locks.Lead(ctx, name, func(ctx context.Context) error {
				lease, _ := leasehold.FromContext(ctx)
				select {
				case led <- lease.Token():
				default: // a later term
				}
				<-ctx.Done()
				return nil
			})
		}()
		select {
		case token := <-led:
			return token, func() error { return <-ended }, nil
		case err := <-ended:
			return 0, nil, err
		}
	}, nil
}

// WorkWith is like Work, with locks of any kind: open returns a function that makes one for each
// waiter.
func WorkWith(open func(ctx context.Context, o Order) (newLock func() (Lock, error), err error)) {
	in := bufio.NewScanner(os.Stdin)
	hear := func() (o Order) {
		if !in.Scan() {
			os.Exit(0)
		}
		Check(json.Unmarshal(in.Bytes(), &o))
		return o
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(n news) {
		mu.Lock()
		defer mu.Unlock()
		if err := out.Encode(n); err != nil {
			os.Exit(0) // nobody reads any more
		}
	}
	o := hear()
	newLock, err := open(context.Background(), o)
	Check(err)
	all := make([]Lock, o.Waiters)
	for i := range all {
		all[i], err = newLock()
		Check(err)
	}
	say(news{Opened: true})
	if hear(); o.Waiters == 0 {
		say(news{Queued: true})
	}
	var refused atomic.Int64
	for i, lock := range all {
		go func() {
			var queued atomic.Int64
			t := Turn{Waiter: i, Began: time.Now().UnixNano()}
			token, unlock, err := lock(context.Background(), func() {
				if queued.CompareAndSwap(0, time.Now().UnixNano()) && refused.Add(1) == int64(o.Waiters) {
					say(news{Queued: true})
				}
			})
			t.Held, t.Queued, t.Token = time.Now().UnixNano(), queued.Load(), token
			if o.How == Lead && err == nil {
				say(news{Turn: &t}) // while the turn lasts
				Check(unlock())
				return
			}
			if err == nil {
				time.Sleep(o.Holds)
			}
			t.Released = time.Now().UnixNano()
			if err == nil {
				err = unlock()
			}
			if err != nil {
				t.Err = err.Error()
			}
			say(news{Turn: &t})
		}()
	}
	for {
		hear()
	}
}

// Check ends the process on an error.
func Check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
