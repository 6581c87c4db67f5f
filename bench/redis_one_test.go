package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"
)

var peers = []string{bsmLock, redsyncLoc, rueidisLoc}

// oneProcess is one lock that 64 goroutines of one process want.
func oneProcess(b *testing.B, addr string) {
	names := append([]string{ours, oursGlobal}, peers...)
	lockers := make(map[string]*locker)
	for _, l := range openLockers(b, addr, names...) {
		lockers[l.name] = l
	}
	s := compare(b, names, 3, func(name string, round int) (tally, error) {
		var one section
		got, err := oneSection(lockers[name], fmt.Sprint("one/", round), &one, 64, 1500*time.Millisecond).run()
		got.Turns = one.turns.Load()
		excluded(b, name, &one, got.sections())
		return got, err
	})
	s.contended("One key, one process, 64 goroutines", names, 1)
	atLeast("one process: times the best peer", s.ratio(ours, s.best(peers...)), 20)
	atMost("one process: commands a section", s.typical(ours).commands(), 0.2)
	atMost("one process: starved", float64(s.typical(ours).starved()), 0)
}

// processes is one lock that 4 goroutines of each of 8 processes want.
func processes(b *testing.B, addr string) {
	const workers = 4
	names := append([]string{ours, oursGlobal}, peers...)
	s := compare(b, names, 3, func(name string, round int) (tally, error) {
		return contendRedis(b, order{
			Addr: addr, Lock: name, Name: fmt.Sprint("processes/", round),
			Path: filepath.Join(b.TempDir(), "section"), Workers: workers, Lasts: 1500 * time.Millisecond,
		}, 8), nil
	})
	s.contended("One key, 8 processes of 4 goroutines", names, workers)
	atLeast("8 processes: times the best peer", s.ratio(ours, s.best(peers...)), 1.5)
	global := s.typical(oursGlobal)
	atMost("8 processes, HandOver -1: commands a section", global.commands(), 2.2)
	atLeast("8 processes, HandOver -1: slowest process / mean", global.slowest(workers), 0.5)
}

// contendRedis runs n processes of TestContendingProcess at once.
func contendRedis(b *testing.B, o order, n int) tally {
	var children []*child
	for i := range n {
		o.Number = i
		c := startChild(b, "TestContendingProcess", o)
		defer c.end()
		children = append(children, c)
	}
	var ready bool
	for _, c := range children {
		c.hear(&ready)
	}
	for _, c := range children {
		c.tell("go")
	}
	var all tally
	for _, c := range children {
		var t tally
		c.hear(&t)
		all.Each = append(all.Each, t.Each...)
		all.Commands += t.Commands
		all.Longest, all.Took = max(all.Longest, t.Longest), max(all.Took, t.Took)
	}
	s := shareSection(b, o.Path)
	all.Turns = s.turns.Load()
	excluded(b, o.Lock, s, all.sections())
	return all
}

// TestContendingProcess is one process of the benchmark.
func TestContendingProcess(t *testing.T) {
	p, o := asChild(t)
	l := newLocker(t, o.Lock, o.Addr)
	defer l.close()
	if _, err := cycle(l.lock, fmt.Sprint("warm/", o.Number), &section{}, 10); err != nil {
		t.Fatal(err)
	}
	c := oneSection(l, o.Name, shareSection(t, o.Path), o.Workers, o.Lasts)
	c.first = o.Number * o.Workers
	p.tell(true)
	p.wait()
	got, err := c.run()
	if err != nil {
		t.Error(err)
	}
	p.tell(got)
	p.wait()
}

// cycle locks and unlocks so many times and returns how long each took.
func cycle(lock lockFunc, name string, s *section, times int) ([]time.Duration, error) {
	took := make([]time.Duration, times)
	for i := range took {
		start := time.Now()
		held, err := lock(context.Background(), name)
		if err != nil {
			return nil, err
		}
		s.pass(1)
		if err := held.unlock(); err != nil {
			return nil, err
		}
		took[i] = time.Since(start)
	}
	return took, nil
}

// gap is from the call that releases in this process to the waiter's return in another.
func gap(b *testing.B, addr string) {
	const blocks = 10
	names := append([]string{ours}, peers...)
	gaps := make(map[string][]time.Duration)
	runs := make(map[string]func(times int) []time.Duration)
	for i, l := range openLockers(b, addr, names...) {
		o := order{Addr: addr, Lock: l.name, Name: fmt.Sprint("gap/", i), Path: filepath.Join(b.TempDir(), "section")}
		waiter, s := startChild(b, "TestWaitingProcess", o), shareSection(b, o.Path)
		runs[l.name] = func(times int) []time.Duration { return measureGap(b, l, waiter, o.Name, s, times) }
		runs[l.name](3) // opens connections, subscribes
	}
	for range blocks {
		for _, name := range names {
			times := 60
			if polls(name) {
				times = 5
			}
			gaps[name] = append(gaps[name], runs[name](times)...)
		}
	}
	t := newTable("Gap from release to the waiter's return in another process", "lock", "p50", "p99", "p50 × ours")
	for _, name := range names {
		g := gaps[name]
		t.row(name, median(g), percentile(g, 99), float64(median(g))/float64(median(gaps[ours])))
	}
	atMost("gap: p50 / rueidislock's", float64(median(gaps[ours]))/float64(median(gaps[rueidisLoc])), 0.7)
	atMost("gap: p99 / p50", float64(percentile(gaps[ours], 99))/float64(median(gaps[ours])), 2)
}

func polls(name string) bool { return name == bsmLock || name == redsyncLoc }

// measureGap holds the lock while waiter wants it: for a few milliseconds, and where the
// waiter polls for up to one of its periods.
func measureGap(b *testing.B, l *locker, waiter *child, name string, s *section, times int) []time.Duration {
	spread := 4 * time.Millisecond
	if polls(l.name) {
		spread = 100 * time.Millisecond
	}
	all := make([]time.Duration, times)
	for i := range all {
		held, err := l.lock(context.Background(), name)
		if err != nil {
			b.Fatalf("%s: %v", l.name, err)
		}
		waiter.tell("want")
		before := s.counter.Load()
		s.pass(1)
		time.Sleep(3*time.Millisecond + rand.N(spread))
		released := time.Now().UnixNano()
		if err := held.unlock(); err != nil {
			b.Fatalf("%s: unlock: %v", l.name, err)
		}
		var returned int64
		waiter.hear(&returned)
		excluded(b, l.name, s, before+2)
		all[i] = time.Duration(returned - released)
	}
	return all
}

// TestWaitingProcess is the other process of the gap.
func TestWaitingProcess(t *testing.T) {
	p, o := asChild(t)
	l := newLocker(t, o.Lock, o.Addr)
	defer l.close()
	s := shareSection(t, o.Path)
	for p.wait() {
		held, err := l.lock(context.Background(), o.Name)
		returned := time.Now().UnixNano()
		if err != nil {
			t.Fatal(err)
		}
		s.pass(2)
		if err := held.unlock(); err != nil {
			t.Fatal(err)
		}
		p.tell(returned)
	}
}
