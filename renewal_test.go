package leasehold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// agreeing is an engine that says yes to everything, unless a call's context has ended or a
// test says otherwise.
type agreeing struct {
	renewed  []string
	released error // of Release
}

func (*agreeing) Features() driver.Features { return driver.Features{Fencing: true} }
func (*agreeing) Close() error              { return nil }

func (d *agreeing) Claim(req driver.Request) (driver.Claim, error) { return &agreed{d, req}, nil }

func (d *agreeing) RenewAll(ctx context.Context, renewals []driver.Renewal) {
	for i := range renewals {
		renewals[i].Grant, renewals[i].Err = renewals[i].Claim.Renew(ctx, renewals[i].TTL)
	}
}

type agreed struct {
	d   *agreeing
	req driver.Request
}

func (c *agreed) Try(ctx context.Context) (driver.Grant, error) {
	return driver.Grant{TTL: c.req.TTL, Fence: driver.FenceStep}, ctx.Err()
}

func (c *agreed) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	c.d.renewed = append(c.d.renewed, c.req.Resource)
	return driver.Grant{TTL: ttl, Fence: driver.FenceStep}, ctx.Err()
}

func (c *agreed) Release(context.Context, driver.End) error { return c.d.released }

func (*agreed) Note(context.Context, string) error { return driver.ErrUnsupported }

// A process that was stopped goes on with its renewals before anybody has looked at the
// deadlines. A lease whose deadline has passed is not renewed any more, and is in nobody's way.
func TestBatchAfterADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &agreeing{}
		l, err := New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		var leases []*Lease
		var due []*entry
		for name, ttl := range map[string]time.Duration{"dead": time.Second, "alive": time.Minute} {
			lease, err := l.Acquire(t.Context(), name, TTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release(context.Background())
			leases, due = append(leases, lease), append(due, &lease.hold.renewals.entry)
		}
		l.keeper.mu.Lock()
		l.keeper.due.Clear() // nobody renews
		l.keeper.mu.Unlock()
		l.deadlines.mu.Lock()
		l.deadlines.due.Disarm() // nor looks at deadlines
		l.deadlines.mu.Unlock()
		time.Sleep(30 * time.Second)
		sent := time.Now()
		l.keeper.renew(due)
		if len(d.renewed) != 1 || d.renewed[0] != "alive" {
			t.Errorf("renewed: %v, want alive", d.renewed)
		}
		for _, lease := range leases {
			alive := lease.Name() == "alive"
			if told := lease.Context().Done(); alive == waiting.Closed(told) {
				t.Errorf("%s: its context has ended: %v", lease.Name(), waiting.Closed(told))
			}
			if alive && lease.Deadline().Before(sent.Add(55*time.Second)) {
				t.Errorf("%s: deadline in %v", lease.Name(), time.Until(lease.Deadline()))
			}
		}
		l.Close()
	})
}
