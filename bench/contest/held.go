package contest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const holdPart = "hold"

// Upkeep is what it takes a process to keep its leases for a while.
type Upkeep struct {
	Leases     int
	CPU        time.Duration
	Server     time.Duration // CPU time of the server; less than 0: not measured
	Commands   int64         // less than 0: not counted
	Bytes      int64         // heap and stacks, for all leases
	Goroutines int           // for all leases
	Lost       int64
	Lasted     time.Duration
}

// KiB is the memory for each lease.
func (u Upkeep) KiB() float64 { return float64(u.Bytes) / 1024 / float64(u.Leases) }

// GoroutinesEach is the goroutines for each lease.
func (u Upkeep) GoroutinesEach() float64 { return float64(u.Goroutines) / float64(u.Leases) }

// CommandsASecond is for all leases together; NaN: not counted.
func (u Upkeep) CommandsASecond() float64 {
	if u.Commands < 0 {
		return math.NaN()
	}
	return float64(u.Commands) / u.Lasted.Seconds()
}

// CPUEach is the process's time for each lease, in seconds.
func (u Upkeep) CPUEach() float64 { return u.CPU.Seconds() / float64(u.Leases) }

// Cores is how many processors the process has kept busy.
func (u Upkeep) Cores() float64 { return u.CPU.Seconds() / u.Lasted.Seconds() }

// Holding is a process that keeps 10,000 leases, or as many as it can, for two TTLs, of
// each lock. Locks that do not renew by themselves have a goroutine each that does. than is
// the lock that the others' CPU time for each lease is compared with.
func (e *Engine) Holding(b *testing.B, addr, than string, names ...string) map[string]Upkeep {
	const leases = 10000
	lasts := 2 * TTL
	if testing.Short() {
		lasts = TTL
	}
	all := make(map[string]Upkeep)
	for _, name := range names {
		u := e.holding(b, order{Addr: addr, Lock: name, Name: "held", Leases: leases, Lasts: lasts})
		all[name] = u
		if u.Lost > 0 {
			b.Errorf("%s: %d leases of %d were lost", name, u.Lost, u.Leases)
		}
	}
	t := e.table(fmt.Sprintf("10,000 leases held for %v", lasts),
		"lock", "leases", "CPU", "CPU/lease × "+than, e.Name+" CPU", "KiB/lease", "goroutines/lease", "commands/s")
	for _, name := range names {
		u := all[name]
		t.Row(name, u.Leases, u.CPU, u.CPUEach()/all[than].CPUEach(), u.Server, u.KiB(), u.GoroutinesEach(), u.CommandsASecond())
	}
	return all
}

func (e *Engine) holding(b *testing.B, o order) Upkeep {
	if c, err := e.find(o.Lock); err == nil && c.Leases > 0 {
		o.Leases = min(o.Leases, c.Leases)
	}
	c := startChild(b, holdPart, o)
	defer c.end()
	var holds bool
	c.hear(&holds)
	server := e.cpu()
	c.tell("go")
	var lasted bool
	c.hear(&lasted)
	server = e.cpuSince(server)
	var u Upkeep
	c.hear(&u)
	u.Server = server
	return u
}

// hold is the process that holds.
func hold(p *parent, o order, l *Locker) error {
	if _, err := Cycle(l.Lock, "warm", &Section{}, 10); err != nil {
		return err
	}
	u := Upkeep{Leases: o.Leases, Lasted: o.Lasts}
	bytes, goroutines := size()
	k := &keepers{}
	all := make([]Held, o.Leases)
	errs := make([]error, o.Leases)
	inParallel(64, o.Leases, func(i int) {
		if all[i], errs[i] = l.Lock(context.Background(), fmt.Sprint(o.Name, "/", i)); errs[i] == nil {
			k.keep(all[i])
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := p.tell(true); err != nil {
		return err
	}
	p.wait()
	cpu, commands := cpuTime(), l.commands()
	time.Sleep(o.Lasts)
	u.CPU, u.Commands = cpuTime()-cpu, l.commands()
	if commands >= 0 {
		u.Commands -= commands
	}
	if err := p.tell(true); err != nil {
		return err
	}
	b, g := size()
	u.Bytes, u.Goroutines = b-bytes, g-goroutines
	k.end()
	var late atomic.Int64
	inParallel(64, o.Leases, func(i int) {
		if all[i].Unlock() != nil {
			late.Add(1)
		}
	})
	u.Lost = max(k.failed.Load(), late.Load())
	err := p.tell(u)
	p.wait()
	return err
}

// keepers renew what does not renew itself.
type keepers struct {
	stop   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	failed atomic.Int64
}

func (k *keepers) keep(h Held) {
	if h.Renew == nil {
		return
	}
	k.once.Do(func() { k.stop = make(chan struct{}) })
	k.wg.Go(func() {
		ticker := time.NewTicker(TTL / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if h.Renew() != nil {
					k.failed.Add(1)
				}
			case <-k.stop:
				return
			}
		}
	})
}

func (k *keepers) end() {
	if k.stop != nil {
		close(k.stop)
	}
	k.wg.Wait()
}

// size is what is in use after a garbage collection.
func size() (bytes int64, goroutines int) {
	runtime.GC()
	runtime.GC() // what the first one has queued for the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// cpuTime is that of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // there is no such process as this one
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// inParallel calls do for 0 to n-1 in so many goroutines.
func inParallel(goroutines, n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	wg.Wait()
}
