package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const leases = 10000

// upkeep is what it takes a process to keep its leases.
type upkeep struct {
	CPU        time.Duration
	Server     time.Duration // CPU time of Redis
	Commands   int64
	Bytes      int64 // heap and stacks, for all leases
	Goroutines int   // for all leases
	Lost       int64
}

// holding is a process that keeps 10,000 leases with a TTL of 10 s for a while. Locks that
// do not renew by themselves have a goroutine each that does.
func holding(b *testing.B, addr string) {
	const lasts = 10 * time.Second
	names := append([]string{ours}, peers...)
	got := make(map[string]upkeep)
	for _, name := range names {
		c := startChild(b, "TestHoldingProcess", order{Addr: addr, Lock: name, Name: "held", Lasts: lasts})
		var u upkeep
		c.hear(&u)
		got[name] = u
		if u.Lost > 0 {
			b.Errorf("%s: %d leases of %d were lost", name, u.Lost, leases)
		}
	}
	t := newTable(fmt.Sprintf("10,000 leases held for %v", lasts), "lock", "CPU", "× redsync", "Redis CPU", "KiB/lease", "goroutines/lease", "commands/s")
	cpu := func(name string) float64 { return float64(got[name].CPU) / float64(got[redsyncLoc].CPU) }
	for _, name := range names {
		u := got[name]
		t.row(name, u.CPU, cpu(name), u.Server, float64(u.Bytes)/1024/leases, float64(u.Goroutines)/leases, float64(u.Commands)/lasts.Seconds())
	}
	atMost("10,000 leases: CPU / redsync's", cpu(ours), 0.1)
	atMost("10,000 leases: KiB a lease", float64(got[ours].Bytes)/1024/leases, 2)
	atMost("10,000 leases: goroutines a lease", float64(got[ours].Goroutines)/leases, 0.01)
}

// TestHoldingProcess is the process that holds.
func TestHoldingProcess(t *testing.T) {
	p, o := asChild(t)
	l := newLocker(t, o.Lock, o.Addr)
	defer l.close()
	if _, err := cycle(l.lock, "warm", &section{}, 10); err != nil {
		t.Fatal(err)
	}
	bytes, goroutines := size()
	k := &keepers{}
	all := make([]held, leases)
	inParallel(64, leases, func(i int) {
		var err error
		if all[i], err = l.lock(context.Background(), fmt.Sprint(o.Name, "/", i)); err != nil {
			t.Error(err)
			return
		}
		k.keep(all[i])
	})
	if t.Failed() {
		return
	}
	var u upkeep
	cpu, commands := cpuTime(t), l.wire.commands.Load()
	server := serverCPU(t, o.Addr)
	time.Sleep(o.Lasts)
	u.CPU, u.Commands, u.Server = cpuTime(t)-cpu, l.wire.commands.Load()-commands, serverCPU(t, o.Addr)-server
	b, g := size()
	u.Bytes, u.Goroutines = b-bytes, g-goroutines
	k.end()
	lost := k.failed.Load()
	var late atomic.Int64
	inParallel(64, leases, func(i int) {
		if all[i].unlock() != nil {
			late.Add(1)
		}
	})
	u.Lost = max(lost, late.Load())
	p.tell(u)
	p.wait()
}

// keepers renew what does not renew itself.
type keepers struct {
	stop   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	failed atomic.Int64
}

func (k *keepers) keep(h held) {
	if h.renew == nil {
		return
	}
	k.once.Do(func() { k.stop = make(chan struct{}) })
	k.wg.Go(func() {
		ticker := time.NewTicker(ttl / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if h.renew() != nil {
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
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
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
