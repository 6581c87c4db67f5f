package quorum_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/memory"
)

// sleeps is a node at which each Try lasts until the machine has slept for d.
type sleeps struct {
	*memory.Driver
	clock *boottime.Clock
	d     time.Duration
}

func (s sleeps) Claim(req driver.Request) (driver.Claim, error) {
	c, err := s.Driver.Claim(req)
	return sleepsInTry{c, s}, err
}

type sleepsInTry struct {
	driver.Claim
	of sleeps
}

func (c sleepsInTry) Try(ctx context.Context) (driver.Grant, error) {
	g, err := c.Claim.Try(ctx)
	c.of.clock.Sleep(c.of.d)
	return g, err
}

// A majority that has answered when the machine had slept for the TTL has granted nothing.
func TestNoGrantAfterASleepOfTheTTL(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	for _, sleep := range []time.Duration{ttl / 10, ttl} {
		var clock boottime.Clock
		d, err := quorum.New([]driver.Driver{sleeps{memory.New(), &clock, sleep}, sleeps{memory.New(), &clock, sleep}, sleeps{memory.New(), &clock, sleep}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		quorum.SleepBy(d, &clock)
		c, err := d.Claim(driver.Request{Resource: "a", Owner: "o", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		if g, err := c.Try(t.Context()); (err == nil) != (sleep < ttl) {
			t.Errorf("Try in which the machine sleeps for %v: %+v, %v", sleep, g, err)
		}
	}
}
