package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A leader of the cluster that has not caught up with what it stores says of a bucket that it does not exist. Whoever
// comes then waits for a moment, and makes no other in its place; one that is missing for longer is.
func TestLeaderThatHasNotCaughtUp(t *testing.T) {
	t.Parallel()
	all := servers.StartNATS(t, 3, "")
	js := connected(t, all[0])
	const prefix = "behind" // of calls that pass the relay, which speaks as such a leader does
	var behind atomic.Bool
	relay, err := js.Conn().Subscribe(prefix+".>", func(m *nats.Msg) {
		if behind.Load() && strings.Contains(m.Subject, ".STREAM.") {
			_ = m.Respond([]byte(`{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`)) // who asked may be gone
			return
		}
		to := *m
		to.Subject = "$JS.API" + strings.TrimPrefix(m.Subject, prefix)
		if kv, ok := strings.CutPrefix(m.Subject, prefix+".$KV."); ok {
			to.Subject = "$KV." + kv
		}
		_ = js.Conn().PublishMsg(&to)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Unsubscribe()
	by, err := jetstream.NewWithAPIPrefix(connected(t, all[0]).Conn(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	electing(t, "CreateBucket", nil, func() error { return natslock.CreateBucket(t.Context(), js, "locks", 3) })
	lag := func() *time.Timer {
		behind.Store(true)
		return time.AfterFunc(time.Second, func() { behind.Store(false) })
	}
	lag()
	fresh := claim(t, on(t, by), "a", "one")
	electing(t, "Try", nil, func() error { _, err := try(t, fresh, 10*time.Second); return err })
	lags := lag()
	if err := fresh.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("Release: %v", err)
	}
	lags.Stop()
	behind.Store(true)
	d := on(t, by)
	start := time.Now()
	if _, err := try(t, claim(t, d, "b", "one"), 10*time.Second); !errors.Is(err, natslock.ErrNoBucket) {
		t.Errorf("Try: %v after %v; want ErrNoBucket", err, time.Since(start))
	}
}

// restarts are the ways in which servers restart.
var restarts = map[string]func(all []*servers.NATS, round int){
	"all at once, killed": func(all []*servers.NATS, _ int) { restart(all, (*servers.NATS).Kill) },
	"all at once":         func(all []*servers.NATS, _ int) { restart(all, (*servers.NATS).Stop) },
	"one by one":          func(all []*servers.NATS, i int) { restart(all[i%len(all):][:1], (*servers.NATS).Stop) },
	"one by one, killed":  func(all []*servers.NATS, i int) { restart(all[i%len(all):][:1], (*servers.NATS).Kill) },
	"two of three": func(all []*servers.NATS, i int) {
		restart([]*servers.NATS{all[i%len(all)], all[(i+1)%len(all)]}, (*servers.NATS).Kill)
	},
}

func restart(some []*servers.NATS, end func(*servers.NATS)) {
	for _, s := range some {
		end(s)
	}
	for _, s := range some {
		s.Begin()
	}
	for _, s := range some {
		s.Ready()
	}
}

// Servers that are only starting, or have not caught up yet, do not say that a bucket which is there does not exist.
func TestServersThatStartMissNoBucket(t *testing.T) {
	for _, c := range []struct {
		servers  int
		replicas string
		restart  string
	}{
		{1, "1", "all at once, killed"}, {1, "1", "all at once"},
		{3, "3", "all at once, killed"}, {3, "3", "all at once"}, {3, "3", "one by one"}, {3, "3", "one by one, killed"}, {3, "3", "two of three"},
		{3, "1", "all at once, killed"}, {3, "1", "one by one"}, {3, "1", "two of three"},
	} {
		t.Run(fmt.Sprintf("%d servers, %s replicas, %s", c.servers, c.replicas, c.restart), func(t *testing.T) {
			if c.servers == 3 && c.restart != "one by one" {
				servers.OnlyWithAll(t)
			}
			all := servers.StartNATS(t, c.servers, "")
			url := "nats://" + servers.NATSAddrs(all) + "/locks?replicas=" + c.replicas
			made, err := natslock.CreateURL(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var asked, missed atomic.Int64
			var asking sync.WaitGroup
			for range 4 {
				asking.Go(func() {
					for ctx.Err() == nil {
						switch err := ask(ctx, url); {
						case err == nil:
							asked.Add(1)
						case errors.Is(err, natslock.ErrNoBucket):
							missed.Add(1)
							t.Logf("missed: %v", err)
						}
					}
				})
			}
			for round := range 3 {
				restarts[c.restart](all, round)
				want := asked.Load() + 4
				claimtest.Eventually(t, "the bucket answers again", func() bool { return asked.Load() >= want })
			}
			cancel()
			asking.Wait()
			if missed.Load() > 0 {
				t.Errorf("%d of %d askers heard that the bucket does not exist", missed.Load(), missed.Load()+asked.Load())
			}
		})
	}
}

// ask has a process that has just come take and give back a lock.
func ask(ctx context.Context, url string) error {
	d, err := natslock.OpenURL(ctx, url)
	if err != nil {
		return err
	}
	defer d.Close()
	c, err := d.Claim(driver.Request{Resource: "x", Owner: rand.Text(), TTL: 10 * time.Second, Mode: driver.Shared})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := c.Try(ctx); err != nil {
		return err
	}
	return c.Release(ctx, driver.End{})
}
