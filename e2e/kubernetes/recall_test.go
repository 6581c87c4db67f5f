package kubernetes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A holder is told of a waiter without a renewal, also after the API server was killed.
func TestHolderIsRecalledAfterARestart(t *testing.T) {
	k := server(t)
	d, other := open(t, k), open(t, k)
	told := make(chan struct{}, 1)
	holder, err := d.Claim(driver.Request{Resource: "recalled", Owner: "holder", TTL: 5 * time.Minute, Wanted: func() {
		select {
		case told <- struct{}{}:
		default:
		}
	}})
	if err == nil {
		_, err = holder.Try(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			k.Kill()
			k.Begin()
			k.Ready()
		}
		waiter := claimtest.New(t, other, driver.Request{Resource: "recalled", Owner: "waiter", TTL: time.Minute, Queue: true})
		queues(t, waiter)
		select {
		case <-told:
		case <-time.After(20 * time.Second): // the TTL is far longer
			t.Fatalf("restarted: %v; the holder is not told of a waiter", restarted)
		}
		if err := waiter.Release(t.Context(), driver.End{}); err != nil {
			t.Fatalf("the waiter leaves: %v", err)
		}
		quiet(told)
	}
}

// quiet returns when no calls have come for a while.
func quiet(told <-chan struct{}) {
	for {
		select {
		case <-told:
		case <-time.After(500 * time.Millisecond):
			return
		}
	}
}

// queues returns when c has a place. It lasts for a few seconds.
func queues(t *testing.T, c driver.Claim) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; { // calls fail until the server serves again
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := c.Try(ctx)
		cancel()
		if errors.Is(err, driver.ErrBusy) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not queued within a minute: %v", err)
		}
	}
}
