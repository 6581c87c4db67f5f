package abandon_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/abandon"
)

var errOwn = errors.New("of the call itself")

// after returns a call that takes d and ignores every context.
func after(d time.Duration) func() (int, error) {
	return func() (int, error) {
		time.Sleep(d)
		return 1, errOwn
	}
}

// A call that ends before its context is waited for. Any other is left when the context ends.
func TestCall(t *testing.T) {
	for _, tc := range []struct {
		name        string
		takes       time.Duration
		grace       time.Duration
		returned    error
		at          time.Duration
		hasBeenLeft bool
	}{
		{"in time", time.Second, 0, errOwn, time.Second, false},
		{"hangs", time.Hour, 0, context.DeadlineExceeded, time.Minute, true},
		{"hangs beyond its grace", time.Hour, time.Second, context.DeadlineExceeded, time.Minute + time.Second, true},
		{"within its grace", time.Minute + time.Second/2, time.Second, errOwn, time.Minute + time.Second/2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var late time.Duration
				began := time.Now()
				terms := abandon.Terms[int]{Grace: tc.grace, Late: func(value int, err error) {
					if late = time.Since(began); value != 1 || err != errOwn {
						t.Errorf("came late: %v, %v", value, err)
					}
				}}
				value, err := terms.Call(ctx, after(tc.takes))
				if took := time.Since(began); took != tc.at || err != tc.returned || (value == 1) == tc.hasBeenLeft {
					t.Errorf("after %v: %v, %v", took, value, err)
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if tc.hasBeenLeft && late != tc.takes || !tc.hasBeenLeft && late != 0 {
					t.Errorf("Late was called after %v", late)
				}
			})
		})
	}
}

// The error is the context's and not its cause, which belongs to somebody else.
func TestCallTellsNoCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errOwn) })
		if _, err := abandon.Call(ctx, after(time.Hour)); err != context.Canceled {
			t.Errorf("returned %v", err)
		}
		time.Sleep(time.Hour) // the bubble ends only when the call has ended completely
	})
}

// A call is made even if its context has already ended.
func TestCallAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	taken := make(chan bool, 1)
	taken <- true
	_, _ = abandon.Call(ctx, func() (bool, error) { return <-taken, nil })
	taken <- true // the call can give it back
}
