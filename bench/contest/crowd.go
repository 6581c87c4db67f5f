package contest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A crowd is goroutines that want locks all the time.
type crowd struct {
	locker     *Locker
	goroutines int
	process    int // which it is
	name       func(goroutine int) string
	section    func(goroutine int) *Section
	lasts      time.Duration
}

// oneSection is a crowd of which all want the lock called name.
func oneSection(l *Locker, name string, s *Section, goroutines int, lasts time.Duration) *crowd {
	return &crowd{
		locker: l, goroutines: goroutines, lasts: lasts,
		name:    func(int) string { return name },
		section: func(int) *Section { return s },
	}
}

// Contend has goroutines of this process want the one lock called name. An error is a lock
// that failed or was lost, or holders that overlapped.
func Contend(l *Locker, name string, goroutines int, lasts time.Duration) (Tally, error) {
	var one Section
	got, err := oneSection(l, name, &one, goroutines, lasts).run()
	got.Turns = one.turns.Load()
	return got, errors.Join(err, one.excluded(got.Sections()))
}

// run lets the crowd loose. An error is a lock that was lost or failed.
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
	var errs []error
	for g := range all {
		w := &all[g]
		t.Each = append(t.Each, w.sections)
		t.Longest = max(t.Longest, w.longest)
		t.Waits.add(&w.waits)
		errs = append(errs, w.err)
	}
	// One is enough to read.
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return t, errs[i]
	}
	return t, nil
}

// work is what one goroutine of a crowd has done.
type work struct {
	sections int64
	waits    Waits
	longest  time.Duration
	err      error
}

// do takes turns until ctx ends. A wait that the end cuts off counts as long as it was.
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
