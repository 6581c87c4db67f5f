package serve_test

import (
	"bytes"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A lease whose holder has released it is not lost, even if the release had no answer: whether the
// holder repeats the release, or a look finds the lease gone or run out.
func TestReleaseWithoutAnAnswerIsNoLoss(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		fault  locktest.Fault
		repeat bool
	}{
		"repeated":            {locktest.LoseReply, true},
		"found by a look":     {locktest.LoseReply, false},
		"which never arrived": {locktest.LoseRequest, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := locktest.NewFaulty(memory.New())
				s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: 5 * time.Second, Sole: true}})
				time.Sleep(time.Second) // until the first look is over
				s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":20000,"details":{"host":"h"}}`)
				d.Next(locktest.OpRelease, c.fault)
				s.want(503, wire.Release, `{"name":"n","owner":"a"}`)
				if c.repeat {
					s.want(410, wire.Release, `{"name":"n","owner":"a"}`)
				}
				time.Sleep(40 * time.Second)
				if got := kinds(s.history("name=n")); got != "granted a, released a" {
					t.Errorf("told %s", got)
				}
				metrics := s.get("/metrics")
				if counts := regexp.MustCompile(`(?m)^leasehold_service_lost_total.* [^0]$`).FindAll(metrics, -1); len(counts) > 0 {
					t.Errorf("counted %s", bytes.Join(counts, []byte(", ")))
				}
				if f := s.figures(); *f.LostHour != 0 {
					t.Errorf("%d are lost", *f.LostHour)
				}
			})
		})
	}
}

// If the holder renews its lease after a release that did not arrive, it may lose it as before.
func TestLossAfterAReleaseThatDidNotArrive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := locktest.NewFaulty(memory.New())
		s := newBubble(t, d, &serve.Options{History: serve.HistoryOptions{Every: 5 * time.Second, Sole: true}})
		time.Sleep(time.Second) // until the first look is over
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":20000}`)
		d.Next(locktest.OpRelease, locktest.LoseRequest)
		s.want(503, wire.Release, `{"name":"n","owner":"a"}`)
		s.want(200, wire.Renew, `{"name":"n","owner":"a","ttl_ms":20000}`)
		time.Sleep(40 * time.Second)
		if got := kinds(s.history("name=n")); got != "granted a, expired a" {
			t.Errorf("told %s", got)
		}
	})
}
