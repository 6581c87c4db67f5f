package locktest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// openFaulty connects to the engine as another process, over a link that can fail.
func openFaulty(t testing.TB, h Harness) *Faulty {
	t.Helper()
	f := NewFaulty(h.Open(t))
	closeAfter(t, f)
	return f
}

// severable opens a driver whose link can be cut, by the harness or by a Faulty.
func severable(t testing.TB, h Harness) (d driver.Driver, sever func() (heal func())) {
	t.Helper()
	if h.Sever == nil {
		f := openFaulty(t, h)
		return f, f.Sever
	}
	d = open(t, h)
	return d, func() func() { return sync.OnceFunc(h.Sever(t, d)) }
}

// ended waits until the context of lease has ended, which must be by the given time. It returns
// when it noticed the end.
func ended(t testing.TB, lease *leasehold.Lease, by time.Time) time.Time {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(max(0, time.Until(by)) + Margin):
		t.Fatalf("the lease's context had not ended %v after it should have", Margin)
	}
	at := time.Now()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, leasehold.ErrLost) {
		t.Errorf("cause of the lost lease's context: %v; want ErrLost", cause)
	}
	return at
}
