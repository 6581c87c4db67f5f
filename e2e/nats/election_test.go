package nats

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// Nobody answers a question that comes while servers elect a leader. So it is asked again: one call
// outlasts the election.
func TestQuestionOutlastsElection(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	open(t, urlOf(all)).(interface{ Close() error }).Close()
	gone := leader(t, all)
	var asked []driver.Driver
	for _, s := range all {
		if s != gone { // so that no connection is lost
			d, err := natslock.OpenURL(t.Context(), "nats://"+s.Addr()+"/locks")
			if err != nil {
				t.Fatal(err)
			}
			defer d.(*natslock.Driver).Close()
			asked = append(asked, d)
		}
	}
	asks := func() {
		t.Helper()
		for _, d := range asked {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := d.(driver.Operator).Inspect(ctx, "a")
			cancel()
			if err != nil {
				t.Errorf("Inspect: %v", err)
			}
		}
	}
	asks()
	gone.Kill()
	asks()
}

// While nobody leads nobody takes what is published, and servers say so at once. That is no outcome: one call
// outlasts the election.
func TestWriteOutlastsElection(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	open(t, urlOf(all)).Close()
	gone := leader(t, all)
	near := all[slices.IndexFunc(all, func(s *servers.NATS) bool { return s != gone })]
	js := connected(t, near)
	d := on(t, js)
	held, kept := claim(t, d, "a", "one"), claim(t, d, "b", "one")
	claimtest.Granted(t, held)
	claimtest.Granted(t, kept)
	gone.Kill()
	for { // what the leader was still given has no answer
		_, err := js.Conn().Request("$KV.locks.z", nil, 100*time.Millisecond)
		if errors.Is(err, nats.ErrNoResponders) {
			break
		}
		if err == nil {
			t.Fatal("the election was over at once")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	released := make(chan error, 1)
	go func() { released <- held.Release(ctx, driver.End{}) }()
	if _, err := kept.Renew(ctx, ttl); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := <-released; err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A server that led, and does not know yet that it does no more, tells what it has of before. It hides no lease from a
// process that goes on with it.
func TestFormerLeaderHidesNoLease(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	open(t, urlOf(all)).Close()
	former := leader(t, all)
	others := slices.DeleteFunc(slices.Clone(all), func(s *servers.NATS) bool { return s == former })
	js := connected(t, former)
	d, far := on(t, js), on(t, connected(t, others[0]))
	if _, err := d.Inspect(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	resume := former.Pause()
	leader(t, others)
	electing(t, "Try", nil, func() error { _, err := try(t, claim(t, far, "a", "one"), 10*time.Second); return err })
	released, asked := make(chan error, 1), js.Conn().Stats().OutMsgs
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		released <- claim(t, d, "a", "one").Release(ctx, driver.End{})
	}()
	for js.Conn().Stats().OutMsgs == asked { // so that it is asked before it hears of the others
		time.Sleep(time.Millisecond)
	}
	resume()
	if err := <-released; errors.Is(err, driver.ErrLost) {
		st, _ := far.Inspect(t.Context(), "a")
		t.Errorf("Release: %v, and it is held: %v", err, st.Holders)
	}
}
