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

	"github.com/leasehold-go/leasehold/internal/several"
)

const holdPart = "hold"

// Upkeep is the cost of keeping leases for a while.
type Upkeep struct {
	Leases     int
	CPU        time.Duration
	Server     time.Duration // CPU time of the server; negative: not measured
	Commands   int64         // negative: not counted
	Bytes      int64         // heap and stacks for all leases
	Goroutines int           // for all leases
	Lost       int64
	Lasted     time.Duration
}

// KiB returns the memory per lease.
func (u Upkeep) KiB() float64 { return float64(u.Bytes) / 1024 / float64(u.Leases) }

// GoroutinesEach returns the goroutines per lease.
func (u Upkeep) GoroutinesEach() float64 { return float64(u.Goroutines) / float64(u.Leases) }

// CommandsASecond returns the commands per second for all leases; NaN: not counted.
func (u Upkeep) CommandsASecond() float64 {
	if u.Commands < 0 {
		return math.NaN()
	}
	return float64(u.Commands) / u.Lasted.Seconds()
}

// CPUEach returns the process's CPU time per lease, in seconds.
func (u Upkeep) CPUEach() float64 { return u.CPU.Seconds() / float64(u.Leases) }

// Cores returns how many processors the process has used.
func (u Upkeep) Cores() float64 { return u.CPU.Seconds() / u.Lasted.Seconds() }

// Holding measures a process that keeps 10,000 leases, or as many as it can, for two TTLs. If a lock
// is not renewed automatically, a goroutine renews it. The CPU time per lease is compared with than's.
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

func hold(p *parent, o order, l *Locker) error {
	if _, err := Cycle(l.Lock, "warm", &Section{}, 10); err != nil {
		return err
	}
	u := Upkeep{Leases: o.Leases, Lasted: o.Lasts}
	bytes, goroutines := size()
	k := &keepers{stop: make(chan struct{})}
	all := make([]Held, o.Leases)
	errs := make([]error, o.Leases)
	several.Bounded(o.Leases, 64, func(i int) {
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
	cpu, commands := CPUTime(), l.commands()
	time.Sleep(o.Lasts)
	u.CPU, u.Commands = CPUTime()-cpu, l.commands()
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
	several.Bounded(o.Leases, 64, func(i int) {
		if all[i].Unlock() != nil {
			late.Add(1)
		}
	})
	u.Lost = max(k.failed.Load(), late.Load())
	err := p.tell(u)
	p.wait()
	return err
}

// keepers renew leases that are not renewed automatically.
type keepers struct {
	stop   chan struct{}
	wg     sync.WaitGroup
	failed atomic.Int64
}

func (k *keepers) keep(h Held) {
	if h.Renew == nil {
		return
	}
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
	close(k.stop)
	k.wg.Wait()
}

// size returns the memory in use after a garbage collection.
func size() (bytes int64, goroutines int) {
	runtime.GC()
	runtime.GC() // the first run may queue objects for the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// CPUTime returns the CPU time of this process so far.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // this process exists
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
