package redislock

import (
	"testing"
	"testing/synctest"
	"time"
)

// A renewal that shortens may come for as long as the server's clock is below what it tells,
// however late: what was granted since counts for no more until the server has told a later time.
func TestALateShorteningCountsUntilTheServerRefusesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &claim{}
		c.hold(1, time.Minute)
		c.mayComeLate(time.Second, c.latest(time.Second))
		time.Sleep(time.Hour)
		if g := c.simplyGranted(time.Minute, 2); g.TTL != time.Second {
			t.Errorf("%v granted, and one for 1 s may still come", g.TTL)
		}
		if g := c.simplyGranted(time.Minute, uint64((time.Hour).Microseconds())); g.TTL != time.Minute {
			t.Errorf("%v granted, and one for 1 s may shorten no more", g.TTL)
		}
	})
}
