package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// hangCases are about one resource whose server, slot or row does not answer, and about other
// resources meanwhile.
var hangCases = []Case{
	{Name: "BatchIsRenewedBesideOneThatHangs", Needs: NeedHang | NeedBatchRenewer, Alone: true, Run: batchIsRenewedBesideOneThatHangs},
	{Name: "OneThatHangsCostsOthersNoTime", Needs: NeedHang, Alone: true, Run: oneThatHangsCostsOthersNoTime},
}

// besideOne is the number of leases beside the one that hangs.
const besideOne = 24

// hang calls h.Hang. It also returns a function that reports whether another name is served
// meanwhile.
func hang(t testing.TB, h Harness, name string) (served func(other string) bool, resume func()) {
	with, resume := h.Hang(t, name)
	return func(other string) bool { return other != name && (with == nil || !with(other)) }, sync.OnceFunc(resume)
}

// batchIsRenewedBesideOneThatHangs: RenewAll ends with its context. It has renewed all claims that
// could be served, and has reported that long before. The outcome for the one that hangs is
// unknown.
func batchIsRenewedBesideOneThatHangs(t testing.TB, h Harness) {
	d := open(t, h)
	var all []driver.Renewal
	var names []string
	base := newName(t)
	for i := range 1 + besideOne {
		c := holding(t, d, request(fmt.Sprint(base, "-", i)))
		all, names = append(all, driver.Renewal{Claim: c.claim, TTL: longTTL}), append(names, c.req.Resource)
	}
	served, resume := hang(t, h, names[0])
	defer resume()
	told := make([]time.Duration, len(all))
	start := time.Now()
	for i := range all {
		all[i].Answered = func() { told[i] = time.Since(start) }
	}
	_ = within(t, "RenewAll", Margin, func(ctx context.Context) error {
		d.(driver.BatchRenewer).RenewAll(ctx, all)
		return nil
	})
	returned := time.Since(start)
	for i, name := range names {
		switch err := all[i].Err; {
		case served(name) && err != nil:
			t.Errorf("renewal of %s beside one that hangs: %v", name, err)
		case served(name) && cmp.Or(told[i], returned) > 3*Margin/4:
			t.Errorf("renewal of %s beside one that hangs: told after %v of %v", name, cmp.Or(told[i], returned), Margin)
		case i == 0 && (err == nil || errors.Is(err, driver.ErrLost)):
			t.Errorf("renewal of the one that hangs: %v; want an error of unknown outcome", err)
		}
	}
}

// oneThatHangsCostsOthersNoTime: one lease of a process hangs. Until long after its end, the
// process renews its other leases as early as another process does, or later by a small part of
// their TTL.
func oneThatHangsCostsOthersNoTime(t testing.TB, h Harness) {
	base := newName(t)
	ttl := 2 * renewableTTL(open(t, h))
	beside, elsewhere := renewing(t, h, base+"-beside", ttl), renewing(t, h, base+"-elsewhere", ttl)
	served, resume := hang(t, h, beside.leases[0].Name())
	defer resume()
	end := time.Now().Add(5 * ttl / 2)
	for time.Now().Before(end) {
		time.Sleep(ttl / 20)
		for _, lease := range append(beside.leases, elsewhere.leases...) {
			if served(lease.Name()) && lease.Context().Err() != nil {
				t.Fatalf("the lease of %s ended, beside one that hangs: %v", lease.Name(), context.Cause(lease.Context()))
			}
		}
	}
	late, usual := beside.least(served), elsewhere.least(served)
	t.Logf("renewed with at least %v of %v left; elsewhere with %v", late, ttl, usual)
	if late < usual-ttl/3 {
		t.Errorf("renewed with only %v of %v left beside one that hangs; elsewhere with %v", late, ttl, usual)
	}
}

// A renewer is a process with leases. It records how much time was left at each renewal.
type renewer struct {
	leases []*leasehold.Lease
	mu     sync.Mutex
	slack  map[string]time.Duration // guarded by mu; the least time left, by name
}

func renewing(t testing.TB, h Harness, name string, ttl time.Duration) *renewer {
	r := &renewer{slack: make(map[string]time.Duration)}
	d := open(t, h)
	l := locker(t, d, leasehold.Options{TTL: ttl, Trace: On(leasehold.StepRenewed, r.renewed)})
	for i := range 1 + besideOne {
		var opts []leasehold.Option
		if i%4 == 3 && d.Features().Shared {
			opts = append(opts, leasehold.Shared())
		}
		r.leases = append(r.leases, acquire(t, l, fmt.Sprint(name, "-", i), opts...))
	}
	return r
}

func (r *renewer) renewed(e leasehold.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before, ok := r.slack[e.Name]; !ok || e.Left < before {
		r.slack[e.Name] = e.Left
	}
}

// least returns the least time left among the names that are served.
func (r *renewer) least(served func(name string) bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	least := time.Duration(0)
	for _, lease := range r.leases {
		slack, ok := r.slack[lease.Name()]
		switch {
		case !served(lease.Name()):
		case !ok:
			return 0 // it was never renewed
		case least == 0 || slack < least:
			least = slack
		}
	}
	return least
}
