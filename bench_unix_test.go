//go:build unix

package leasehold_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// An instant engine says yes to everything at once, so that only the core is measured.
type instant struct{ calls *atomic.Int64 } // that renewed

func (d instant) Claim(req driver.Request) (driver.Claim, error) { return instantClaim{d, req}, nil }
func (instant) Features() driver.Features {
	return driver.Features{MinTTL: time.Millisecond}
}
func (instant) Close() error { return nil }

func (d instant) RenewAll(_ context.Context, renewals []driver.Renewal) {
	d.calls.Add(1)
	for i := range renewals {
		renewals[i].Grant.TTL = renewals[i].TTL
	}
}

type instantClaim struct {
	engine instant
	req    driver.Request
}

func (c instantClaim) Try(context.Context) (driver.Grant, error) {
	return driver.Grant{TTL: c.req.TTL}, nil
}

func (c instantClaim) Renew(_ context.Context, ttl time.Duration) (driver.Grant, error) {
	c.engine.calls.Add(1)
	return driver.Grant{TTL: ttl}, nil
}

func (instantClaim) Release(context.Context, driver.End) error { return nil }

func (instantClaim) Note(context.Context, string) error { return driver.ErrUnsupported }

// BenchmarkRenewal keeps 10,000 leases. Its figures are what one renewal costs of a
// processor, the engine aside, and how many share a call.
func BenchmarkRenewal(b *testing.B) {
	b.Run("batches", func(b *testing.B) {
		engine := instant{new(atomic.Int64)}
		benchmarkRenewal(b, engine, engine.calls)
	})
	b.Run("one by one", func(b *testing.B) {
		engine := instant{new(atomic.Int64)}
		benchmarkRenewal(b, struct{ driver.Driver }{engine}, engine.calls)
	})
}

func benchmarkRenewal(b *testing.B, engine driver.Driver, calls *atomic.Int64) {
	var renewals, last atomic.Int64
	done := make(chan struct{})
	locks, err := leasehold.New(engine, &leasehold.Options{
		TTL: 3 * time.Second,
		Trace: locktest.On(leasehold.StepRenewed, func(leasehold.Event) {
			if renewals.Add(1) == last.Load() {
				close(done)
			}
		}),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer locks.Close()
	held := make([]*leasehold.Lease, 10_000)
	for i := range held {
		if held[i], err = locks.Acquire(b.Context(), fmt.Sprint("lease ", i)); err != nil {
			b.Fatal(err)
		}
	}
	before, first, called := processor(b), renewals.Load(), calls.Load()
	last.Store(first + int64(b.N))
	b.ResetTimer()
	<-done
	spent := processor(b) - before
	b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/renewal")
	b.ReportMetric(float64(renewals.Load()-first)/float64(calls.Load()-called), "renewals/call")
	b.ReportMetric(0, "ns/op") // is how often they are due
	runtime.KeepAlive(held)
}

// processor is what this process has used so far.
func processor(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
