package contest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"
)

const waitPart = "wait"

// Gaps are the times from a release to the waiter's return, by lock.
type Gaps map[string][]time.Duration

// Percentile returns the p-th percentile, in seconds.
func (g Gaps) Percentile(name string, p int) float64 { return Percentile(g[name], p).Seconds() }

// hangs is the time after which a waiter whose lock is free counts as hung.
const hangs = 3 * TTL

// Gap measures the time from the call that releases in this process to the waiter's return in
// another one. The others are compared with the first of names, which is Leasehold. A waiter that
// hangs is counted, and its process is replaced.
func (e *Engine) Gap(b *testing.B, addr string, names ...string) Gaps {
	blocks := 10
	if testing.Short() {
		blocks = 2
	}
	gaps, rivals := make(Gaps), make(map[string]*rivalry)
	lockers := e.openAll(b, addr, names)
	for i, name := range names {
		c, _ := e.find(name) // it was opened, so it exists
		r := &rivalry{locker: lockers[name], lock: fmt.Sprint("gap/", i), polls: c.Polls}
		o := order{Addr: addr, Lock: name, Name: r.lock, Path: filepath.Join(b.TempDir(), "section")}
		var unmap func()
		var err error
		if r.section, unmap, err = shareSection(o.Path); err != nil {
			b.Fatal(err)
		}
		defer unmap()
		r.begin = func() *child { return startChild(b, waitPart, o) }
		r.waiter = r.begin()
		rivals[name] = r
		if _, err := r.measure(3); err != nil { // this opens connections and subscribes
			b.Fatalf("%s: %v", name, err)
		}
	}
	for range blocks {
		for _, name := range names {
			got, err := rivals[name].measure(rivals[name].times())
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			gaps[name] = append(gaps[name], got...)
		}
	}
	t := e.table("Gap from release to the waiter's return in another process", "lock", "p50", "p99", "p50 × ours", "p50 × the release call", "hung")
	for _, name := range names {
		g := gaps[name]
		t.Row(name, Median(g), Percentile(g, 99), ratio(Median(g), Median(gaps[names[0]])), ratio(Median(g), Median(rivals[name].calls)), rivals[name].hung)
	}
	if n := rivals[names[0]].hung; n > 0 {
		b.Errorf("%d waiters of %s hung", n, names[0])
	}
	return gaps
}

// A rivalry is one lock that this process holds while another process waits for it.
type rivalry struct {
	locker  *Locker
	lock    string
	polls   time.Duration
	begin   func() *child
	waiter  *child
	section *Section
	hung    int             // number of waiters that hung
	calls   []time.Duration // how long each release took
}

// times returns how often a block measures the lock: fewer times if it takes long.
func (r *rivalry) times() int {
	if r.polls >= 50*time.Millisecond {
		return 5
	}
	return 60
}

// measure holds the lock for some milliseconds or, if the waiter polls, for up to one of its
// periods.
func (r *rivalry) measure(times int) ([]time.Duration, error) {
	spread := max(4*time.Millisecond, r.polls)
	var all []time.Duration
	for range times {
		held, err := r.locker.Lock(context.Background(), r.lock)
		if err != nil {
			return nil, err
		}
		r.waiter.tell("want")
		before := r.section.counter.Load()
		r.section.pass(holderOf(0, 0))
		time.Sleep(3*time.Millisecond + rand.N(spread))
		released := time.Now().UnixNano()
		if err := held.Unlock(); err != nil {
			return nil, fmt.Errorf("unlock: %w", err)
		}
		call := time.Duration(time.Now().UnixNano() - released)
		var returned int64
		if !r.waiter.hears(&returned, hangs) {
			r.hung++
			r.waiter = r.begin()
			continue
		}
		if err := r.section.excluded(before + 2); err != nil {
			return nil, err
		}
		all = append(all, time.Duration(returned-released))
		r.calls = append(r.calls, call)
	}
	return all, nil
}

func wait(p *parent, o order, l *Locker) error {
	s, unmap, err := shareSection(o.Path)
	if err != nil {
		return err
	}
	defer unmap()
	for p.wait() {
		held, err := l.Lock(context.Background(), o.Name)
		returned := time.Now().UnixNano()
		if err != nil {
			return err
		}
		s.pass(holderOf(1, 0))
		if err := held.Unlock(); err != nil {
			return err
		}
		if err := p.tell(returned); err != nil {
			return err
		}
	}
	return nil
}
