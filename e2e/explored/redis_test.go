// Package explored explores drivers of real servers: each connection ends in the bubble at the
// explorer, which asks the server over a socket of its own and moves its clock with the bubble's.
package explored

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestRedis explores redislock, with the scripts as they are, on a real server.
func TestRedis(t *testing.T) {
	s := startServer(t)
	h := explore.Harness{Name: "Redis", For: time.Second / 2, Tidy: true, New: s.connects(t, nil), Known: []string{
		// Who gives up a Resume leaves the lease until it ends: no fault.
		"resume; p1 connect 1 = hold 5/4; p2 renew 1 answer = cancel c2",
		// Where connecting takes long, so may a release.
		"readers; p1 connect 1 answer = hold 5/4; p1 acquire 1 = pause 3/2",
		// An attempt is served once more, after another than its claim has ended the lease: who resumed it, or an operator.
		"inherit; p1 take 1 = again after 5/4; p1 give 1 answer = hold 99/100",
		"evict; p1 SUBSCRIBE 1 = hang; p2 SUBSCRIBE 1 = pause 1; p1 take 1 = again after 1/4",
	}}
	if !hasTime() {
		h.Scenarios = []string{"try", "recall"}
	}
	explore.Run(t, h)
}

// TestRedisWeights explores weights at random, where there is no time for all that TestRedis explores.
func TestRedisWeights(t *testing.T) {
	if hasTime() {
		t.Skip("TestRedis explores them")
	}
	s := startServer(t)
	explore.Run(t, explore.Harness{Name: "Redis", Changes: -1, For: time.Second, Tidy: true, Scenarios: []string{"weights"}, New: s.connects(t, nil)})
}

// TestRedisTogether explores calls that are on their way together, over one connection: with a
// change to each message where there is time, or else at random.
func TestRedisTogether(t *testing.T) {
	s := startServer(t)
	h := explore.Harness{Name: "Redis", For: time.Second, Tidy: true, Scenarios: []string{"pairs"}, New: s.connects(t, nil)}
	if !hasTime() {
		h.Changes = -1
	}
	explore.Run(t, h)
	if b := s.batches; b.onTheWay < 2 || b.written < 2 {
		t.Errorf("at most %d calls were on their way together, and %d written at once: want two and more", b.onTheWay, b.written)
	}
}

// TestRedisWithReplicas explores calls that replicas must acknowledge, which go over a connection of their
// own. That they do is what the explorer answers to WAIT.
func TestRedisWithReplicas(t *testing.T) {
	s := startServer(t)
	h := explore.Harness{Name: "Redis, with replicas", For: time.Second, Tidy: true, New: s.connects(t, &redislock.Options{Replicas: 1})}
	if !hasTime() {
		h.Changes, h.Scenarios = -1, []string{"pairs"}
	}
	explore.Run(t, h)
}

// connects is how processes connect with the server.
func (s *server) connects(t *testing.T, o *redislock.Options) func(w *explore.World) func(*explore.Process) driver.Driver {
	return func(w *explore.World) func(*explore.Process) driver.Driver {
		n := s.network("")
		w.OnFlush(n.restart)
		w.OnClock(n.keepsTime())
		w.OnState(n.watch(w))
		return func(p *explore.Process) driver.Driver {
			d, err := redislock.Open(n.options(p), o)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
}
