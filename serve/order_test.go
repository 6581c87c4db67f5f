package serve_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A standing driver makes renewals when the test lets it.
type standing struct {
	driver.Driver
	renewing chan struct{} // gets an element for each renewal that has come
	goes     chan struct{} // lets one renewal go for each element
}

func (d standing) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return standingClaim{c, d}, err
}

type standingClaim struct {
	driver.Claim
	d standing
}

func (c standingClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	c.d.renewing <- struct{}{}
	<-c.d.goes
	return c.Claim.Renew(ctx, ttl)
}

// Calls that wait for an earlier call of their owner are served in the order of their numbers, or
// not at all.
func TestLateCallsAreRefusedInTheirTurn(t *testing.T) {
	t.Parallel()
	d := standing{memory.NewServer().Connect(), make(chan struct{}, 3), make(chan struct{})}
	s := startOn(t, d, nil)
	renew := func(call int) chan answer {
		done := make(chan answer, 1)
		go func() {
			done <- s.post(wire.Renew, `{"name":"n","owner":"o","ttl_ms":%d,"caller":"c","call":%d}`, 10000*call, call)
		}()
		return done
	}
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":1}`).want(t, 200, "")
	second := renew(2)
	<-d.renewing
	third := renew(3)
	time.Sleep(100 * time.Millisecond) // by then it very likely waits
	fourth := renew(4)
	time.Sleep(100 * time.Millisecond)
	close(d.goes)
	(<-second).want(t, 200, "")
	(<-fourth).want(t, 200, "")
	if a := <-third; a.status != 410 || a.Code != "late_call" {
		t.Errorf("a call that had to wait until a later one had come: %d %s", a.status, a.text)
	}
}
