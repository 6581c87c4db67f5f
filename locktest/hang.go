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

// hangCases are about one resource whose server, slot or row does not answer, and the others.
var hangCases = []Case{
	{Name: "BatchIsRenewedBesideOneThatHangs", Needs: NeedHang | NeedBatchRenewer, Alone: true, Run: batchIsRenewedBesideOneThatHangs},
	{Name: "OneThatHangsCostsOthersNoTime", Needs: NeedHang, Alone: true, Run: oneThatHangsCostsOthersNoTime},
}

// besideOne is how many leases there are beside the one that hangs.
const besideOne = 24

// hang is h.Hang, and whether another name is served meanwhile.
func hang(t testing.TB, h Harness, name string) (served func(other string) bool, resume func()) {
	with, resume := h.Hang(t, name)
	return func(other string) bool { return other != name && (with == nil || !with(other)) }, sync.OnceFunc(resume)
}

// batchIsRenewedBesideOneThatHangs: RenewAll ends with its context, and has renewed all that
// answered, and told so long before; of the one that hangs it knows nothing.
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

// oneThatHangsCostsOthersNoTime: one lease of a process hangs. The process renews its other leases
// as another process does, or a small part of their TTL later, until long after that one has ended.
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

// A renewer is a process with leases, and what was left of each when it was renewed.
type renewer struct {
	leases []*leasehold.Lease
	mu     sync.Mutex
	slack  map[string]time.Duration // guarded by mu; the least, by name
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

// least is the least of those that were served.
func (r *renewer) least(served func(name string) bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	least := time.Duration(0)
	for _, lease := range r.leases {
		slack, ok := r.slack[lease.Name()]
		switch {
		case !served(lease.Name()):
		case !ok:
			return 0 // never renewed
		case least == 0 || slack < least:
			least = slack
		}
	}
	return least
}
