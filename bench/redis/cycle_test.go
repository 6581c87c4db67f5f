package redis_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// BenchmarkCycle is what a lease costs the process that takes and gives it up: its processor time and its
// allocations. Client and server share the machine, so that ns/op is not the client's alone.
func BenchmarkCycle(b *testing.B) {
	addr := servers.StartRedis(b).Addr()
	for _, c := range engine.Competitors {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", c.Name, goroutines), func(b *testing.B) { cycle(b, c, addr, goroutines) })
		}
	}
}

func cycle(b *testing.B, c contest.Competitor, addr string, goroutines int) {
	l, err := c.Open(addr)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	one := func(name string) {
		held, err := l.Lock(context.Background(), name)
		if err == nil {
			err = held.Unlock()
		}
		if err != nil {
			b.Error(err)
		}
	}
	one("warm")
	b.ReportAllocs()
	b.ResetTimer()
	before := contest.CPUTime()
	defer func() { b.ReportMetric(float64(contest.CPUTime()-before)/float64(b.N), "cpu-ns/op") }()
	ended := make(chan bool)
	for g := range goroutines {
		go func() {
			name := fmt.Sprint("own", g)
			for range (b.N + goroutines - 1) / goroutines {
				one(name)
			}
			ended <- true
		}()
	}
	for range goroutines {
		<-ended
	}
}
