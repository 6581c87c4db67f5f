package contest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A crowd is a number of goroutines that lock all the time.
type crowd struct {
	locker     *Locker
	goroutines int
	process    int // number of the process
	name       func(goroutine int) string
	section    func(goroutine int) *Section
	lasts      time.Duration
}

// oneSection returns a crowd that wants one lock.
func oneSection(l *Locker, name string, s *Section, goroutines int, lasts time.Duration) *crowd {
	return &crowd{
		locker: l, goroutines: goroutines, lasts: lasts,
		name:    func(int) string { return name },
		section: func(int) *Section { return s },
	}
}

// Contend makes goroutines of this process contend for one lock. It returns an error if a lock
// failed or was lost, or if holders overlapped.
func Contend(l *Locker, name string, goroutines int, lasts time.Duration) (Tally, error) {
	var one Section
	got, err := oneSection(l, name, &one, goroutines, lasts).run()
	got.Turns = one.turns.Load()
	return got, errors.Join(err, one.excluded(got.Sections()))
}

// run runs the crowd. It returns an error if a lock failed or was lost.
func (c *crowd) run() (Tally, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	all := make([]work, c.goroutines)
	commands := c.locker.commands()
	start := time.Now()
	timer := time.AfterFunc(c.lasts, stop)
	defer timer.Stop()
	var wg sync.WaitGroup
	for g := range all {
		wg.Go(func() { all[g].do(ctx, c, g) })
	}
	wg.Wait()
	t := Tally{Took: time.Since(start), Commands: uncounted, Server: -1}
	if commands >= 0 {
		t.Commands = c.locker.commands() - commands
	}
	var err error // one is enough
	for g := range all {
		w := &all[g]
		t.Each = append(t.Each, w.sections)
		t.Longest = max(t.Longest, w.longest)
		t.Waits.add(&w.waits)
		err = cmp.Or(err, w.err)
	}
	return t, err
}

// work is the work of one goroutine of a crowd.
type work struct {
	sections int64
	waits    Waits
	longest  time.Duration
	err      error
}

// do locks and unlocks until ctx ends. A wait that ctx cuts off counts with its length.
func (w *work) do(ctx context.Context, c *crowd, g int) {
	name, section := c.name(g), c.section(g)
	for ctx.Err() == nil {
		start := time.Now()
		held, err := c.locker.Lock(ctx, name)
		waited := time.Since(start)
		w.longest = max(w.longest, waited)
		if err != nil {
			if ctx.Err() == nil {
				w.err = err
			}
			return
		}
		w.waits.count(waited)
		section.pass(holderOf(c.process, g))
		w.sections++
		if err := held.Unlock(); err != nil {
			w.err = fmt.Errorf("unlock: %w", err)
			return
		}
	}
}
