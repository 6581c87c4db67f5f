package crowd

import (
	"bufio"
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

// An order is what a process of a fleet is told.
type order struct {
	URL     string `json:",omitempty"` // to open
	How     string `json:",omitempty"`
	Waiters int    `json:",omitempty"`
	Begin   bool   `json:",omitempty"` // to wait
}

// News is what it says.
type news struct {
	Opened bool  `json:",omitempty"`
	Queued bool  `json:",omitempty"` // all waiters have been refused
	Turn   *Turn `json:",omitempty"`
}

// Work is a process of a fleet, until its standard input ends.
func Work(open func(ctx context.Context, url string) (driver.Driver, error)) {
	in := bufio.NewScanner(os.Stdin)
	hear := func() (o order) {
		if !in.Scan() {
			os.Exit(0)
		}
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			log.Fatal(err)
		}
		return o
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(n news) {
		mu.Lock()
		defer mu.Unlock()
		if err := out.Encode(n); err != nil {
			os.Exit(0) // nobody hears
		}
	}
	o := hear()
	d, err := open(context.Background(), o.URL)
	if err != nil {
		log.Fatal(err)
	}
	var left atomic.Int64 // waiters that have not been refused
	left.Store(int64(o.Waiters))
	all := make([]*waiter, o.Waiters)
	for i := range all {
		w := &waiter{lead: o.How == "lead", say: say}
		w.turn.Waiter = i
		opts := leasehold.Options{TTL: TTL, HandOver: -1, Trace: func(_ context.Context, e leasehold.Event) {
			if e.Step == leasehold.StepQueued && w.queued.CompareAndSwap(0, time.Now().UnixNano()) && left.Add(-1) == 0 {
				say(news{Queued: true})
			}
		}}
		if w.locks, err = leasehold.New(d, &opts); err != nil {
			log.Fatal(err)
		}
		all[i] = w
	}
	say(news{Opened: true})
	if hear(); o.Waiters == 0 {
		say(news{Queued: true})
	}
	for _, w := range all {
		go w.run()
	}
	for {
		hear()
	}
}

// TTL is that of a fleet's leases.
const TTL = 10 * time.Second

// A waiter is one that wants the name.
type waiter struct {
	locks  *leasehold.Locker
	lead   bool
	say    func(news)
	queued atomic.Int64
	turn   Turn
}

// run has one turn. Who leads does so until its process ends.
func (w *waiter) run() {
	w.turn.Began = time.Now().UnixNano()
	var err error
	if ctx := context.Background(); w.lead {
		err = w.locks.Lead(ctx, Name, func(ctx context.Context) error {
			w.held(ctx)
			w.say(news{Turn: &w.turn})
			<-ctx.Done()
			return fmt.Errorf("leads no longer: %w", context.Cause(ctx))
		})
	} else {
		err = w.locks.Do(ctx, Name, func(ctx context.Context) error {
			w.held(ctx)
			return nil
		})
	}
	if err != nil {
		w.turn.Err = err.Error()
	}
	w.say(news{Turn: &w.turn})
}

func (w *waiter) held(ctx context.Context) {
	w.turn.Held = time.Now().UnixNano()
	w.turn.Queued = w.queued.Load()
	if lease, ok := leasehold.FromContext(ctx); ok {
		w.turn.Token = lease.Token()
	}
	w.turn.Released = time.Now().UnixNano()
}
