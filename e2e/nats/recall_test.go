package nats

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A holder is told of a waiter without a renewal, also after the server was killed, and after the
// server hung while the place came.
func TestHolderIsRecalledAfterFaults(t *testing.T) {
	t.Parallel()
	s := servers.StartNATS(t, 1, "")[0]
	url := urlOf([]*servers.NATS{s})
	d, other := open(t, url), open(t, url)
	told := make(chan struct{}, 1)
	holder, err := d.Claim(driver.Request{Resource: "a", Owner: "holder", TTL: 5 * time.Minute, Wanted: func() {
		select {
		case told <- struct{}{}:
		default:
		}
	}})
	if err == nil {
		_, err = try(t, holder, time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range []struct {
		name   string
		happen func()
	}{
		{"none", func() {}},
		{"killed", func() { s.Kill(); s.Begin(); s.Ready() }},
		{"hung", func() { time.AfterFunc(time.Second, s.Pause()) }},
	} {
		fault.happen()
		waiter := claimtest.New(t, other, driver.Request{Resource: "a", Owner: fault.name, TTL: time.Minute, Queue: true})
		queues(t, waiter)
		select {
		case <-told:
		case <-time.After(10 * time.Second): // far less than it is until the client notices by itself
			t.Fatalf("%s: the holder is not told of a waiter", fault.name)
		}
		if err := waiter.Release(t.Context(), driver.End{}); err != nil {
			t.Fatalf("%s: the waiter leaves: %v", fault.name, err)
		}
		quiet(told)
	}
}

// queues returns when c has a place. It lasts for a few seconds.
func queues(t *testing.T, c driver.Claim) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; { // calls fail until the client is back
		_, err := try(t, c, 5*time.Second)
		if errors.Is(err, driver.ErrBusy) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not queued within a minute: %v", err)
		}
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
