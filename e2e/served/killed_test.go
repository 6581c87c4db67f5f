package served

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestKilledInstances: while holders in three languages hold, waiters wait and grants are on their
// way, one instance after the other is killed and started again. Nobody holds beside another, tokens
// grow, and in the end nothing is left.
func TestKilledInstances(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := serve(t, "redis://"+r.Addr())
	c := hire(t, s)
	if !c.isServed(1, time.Minute) {
		t.Errorf("not all are served: %v", c.served)
	}
	const kills, pause = 6, 700 * time.Millisecond
	before := c.history.Len()
	for n := range kills {
		time.Sleep(pause)
		i := s.instances[n%len(s.instances)]
		i.kill()
		i.start(t)
	}
	if served := c.history.Len() - before; served < kills {
		t.Errorf("%d were served while instances were killed", served)
	}
	if !c.isServed(4, time.Minute) || c.refused() > 0 {
		t.Errorf("served after all: %v, and refused after 10 s: %d", c.served, c.refused())
	}
	c.quits()
	isFree(t, s)
}

// TestStoreStallsLongerThanTTL: both instances' store stands for longer than the leases last, while a
// holder in each language goes on for as long as it believes that it may.
func TestStoreStallsLongerThanTTL(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := serve(t, "redis://"+r.Addr())
	c := hire(t, s)
	if !c.isServed(1, time.Minute) {
		t.Errorf("not all are served: %v", c.served)
	}
	d := s.harness().Open(t)
	defer d.Close()
	for _, language := range []string{"go", "python", "node"} {
		give := c.keep(d.(driver.Operator), language)
		resume := r.Pause()
		time.Sleep(crewTTL * 4 / 3)
		resume()
		time.Sleep(time.Second) // of which the next one holds a part
		give()
		if !c.isServed(3, time.Minute) {
			t.Errorf("not all are served after the store has stood: %v", c.served)
		}
	}
	c.quits()
	isFree(t, s)
}

// isFree checks that nothing is left of the crew.
func isFree(t *testing.T, s *service) {
	t.Helper()
	d := s.harness().Open(t)
	defer d.Close()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Acquire(t.Context(), contended, leasehold.Wait(20*time.Second))
	if err != nil {
		t.Fatalf("after all: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
