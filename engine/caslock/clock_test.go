package caslock_test

import (
	"context"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// Whoever comes when a holder is long dead watches it for its whole TTL; those who saw it before
// do not.
func TestDeadHolderIsWatchedForItsTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &hashed{}
		claimtest.Granted(t, claimOf(t, process(t, store), driver.Request{Owner: "dead"}))
		early, late := claimOf(t, process(t, store), driver.Request{Owner: "early"}), claimOf(t, process(t, store), driver.Request{Owner: "late"})
		claimtest.Refused(t, early)
		time.Sleep(ttl / 2)
		const step, near = 20 * time.Millisecond, 200 * time.Millisecond
		if took := until(t, early, step); took < whole-ttl/2-near || took > whole-ttl/2+near {
			t.Errorf("granted after %v to who had watched for half of the TTL", took)
		}
		time.Sleep(10 * ttl)
		if took := until(t, late, step); took < whole || took > whole+near {
			t.Errorf("granted after %v to who had just come", took)
		}
	})
}

// A lease is not taken for an earlier one of the same owner, which was seen long ago.
func TestNewLeaseIsNotTakenForAnOldOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &hashed{}
		d, other := process(t, store), claimOf(t, process(t, store), driver.Request{Owner: "b"})
		for range 3 {
			c := claimOf(t, d, driver.Request{Owner: "a"})
			claimtest.Granted(t, c)
			claimtest.Refused(t, other)
			claimtest.Released(t, c)
			time.Sleep(ttl)
		}
	})
}

// Nor is one that was renewed after the store went back, when it has been renewed as often again.
func TestRenewalIsNotTakenForAnOldOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &hashed{}
		holder, other := claimOf(t, process(t, store), driver.Request{Owner: "a"}), claimOf(t, process(t, store), driver.Request{Owner: "b"})
		claimtest.Granted(t, holder)
		renew := func() {
			if _, err := holder.Renew(t.Context(), ttl); err != nil {
				t.Fatal(err)
			}
		}
		before := store.all()
		renew()
		claimtest.Refused(t, other)
		for range 4 {
			time.Sleep(ttl / 2)
			renew()
		}
		store.putBack(before)
		renew()
		claimtest.Refused(t, other)
	})
}

// Waiters write to the record all the time, which keeps nobody alive but themselves.
func TestWaitersDoNotProlongALease(t *testing.T) {
	for name, store := range map[string]caslock.Store{"hashed": &hashed{}, "counting": &counting{}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				claimtest.Granted(t, claimOf(t, process(t, store), driver.Request{Owner: "dead"}))
				claimtest.Refused(t, claimOf(t, process(t, store), driver.Request{Owner: "died waiting", Queue: true}))
				a := claimOf(t, process(t, store), driver.Request{Owner: "a", Queue: true})
				b := claimOf(t, process(t, store), driver.Request{Owner: "b", Queue: true})
				start := time.Now()
				for {
					_, err := a.Try(t.Context())
					if err == nil {
						break
					}
					claimtest.Refused(t, b)
					if time.Sleep(time.Second / 2); time.Since(start) > 10*ttl {
						t.Fatalf("not granted within %v", 10*ttl)
					}
				}
				if took := time.Since(start); took < whole-time.Second || took > whole+time.Second {
					t.Errorf("granted after %v, want %v", took, whole)
				}
			})
		})
	}
}

// Nobody knows when a holder gave its last sign who has not seen it come: one that is long dead must not look
// alive to whoever has just come, or looks but rarely.
func TestTTLIsToldOfRenewalsThatWereSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &hashed{}
		holder := claimOf(t, process(t, store), driver.Request{Owner: "holder"})
		claimtest.Granted(t, holder)
		renew := func() {
			t.Helper()
			if _, err := holder.Renew(t.Context(), ttl); err != nil {
				t.Fatal(err)
			}
		}
		tells := func(d driver.Driver, what string, want time.Duration) {
			t.Helper()
			st, err := d.(driver.Operator).Inspect(t.Context(), "r")
			if err != nil || len(st.Holders) != 1 || st.Holders[0].TTL != want || st.Holders[0].Left <= 0 {
				t.Errorf("%s: %v, %v; want a holder with a TTL of %v", what, st, err, want)
			}
			sts, _, err := d.(driver.Operator).List(t.Context(), "", "", 10)
			if err != nil || len(sts) != 1 || sts[0].Holders[0].TTL != want {
				t.Errorf("%s: listed %v, %v; want a holder with a TTL of %v", what, sts, err, want)
			}
			busy := claimtest.Refused(t, claimOf(t, d, driver.Request{Owner: "other"}))
			if busy.Holder.TTL != want {
				t.Errorf("%s: refused with %v; want a TTL of %v", what, busy.Holder, want)
			}
		}
		often, rarely := process(t, store), process(t, store)
		tells(often, "never seen before", 0)
		tells(rarely, "never seen before", 0)
		time.Sleep(ttl / 4)
		tells(often, "the same sign", 0)
		renew()
		tells(often, "a renewal since", ttl)
		time.Sleep(ttl / 2)
		renew()
		tells(rarely, "a renewal since a look that is long ago", 0)
		time.Sleep(10 * ttl)
		tells(process(t, store), "dead, to who has just come", 0)
	})
}

// A process knows when its own leases were renewed.
func TestTTLOfOwnLeases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := process(t, &hashed{})
		claimtest.Granted(t, claimOf(t, d, driver.Request{Owner: "a"}))
		time.Sleep(ttl / 2)
		st, err := d.(driver.Operator).Inspect(t.Context(), "r")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].TTL != ttl || st.Holders[0].Left > ttl*3/4 {
			t.Errorf("%v, %v", st, err)
		}
	})
}

// A store that tells for how long a value has been there spares those who come late the watching.
func TestAgeOfAValueIsBelieved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &aged{}
		claimtest.Granted(t, claimOf(t, process(t, store), driver.Request{Owner: "dead"}))
		time.Sleep(ttl)
		claimtest.Refused(t, claimOf(t, process(t, store), driver.Request{Owner: "early"}))
		time.Sleep(whole - ttl)
		claimtest.Granted(t, claimOf(t, process(t, store), driver.Request{Owner: "late"}))
	})
}

// An aged is a store that has a clock.
type aged struct {
	hashed
	since time.Time
}

func (s *aged) Read(ctx context.Context, name string) (caslock.Item, error) {
	i, err := s.hashed.Read(ctx, name)
	i.Age = time.Since(s.since)
	return i, err
}

func (s *aged) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	v, err := s.hashed.Write(ctx, name, value, was, life)
	s.since = time.Now()
	return v, err
}

// Wall clocks that differ by hours, either way, change nothing but what is shown.
func TestWallClocksDoNotMatter(t *testing.T) {
	for _, hours := range []int{-25, 25} {
		bubble(t, func(t *testing.T) {
			store := &hashed{}
			here, there := process(t, store), process(t, elsewhen{store, time.Duration(hours) * time.Hour})
			holder, other := claimOf(t, there, driver.Request{Owner: "there"}), claimOf(t, here, driver.Request{Owner: "here", Queue: true})
			claimtest.Granted(t, holder)
			for range 5 {
				time.Sleep(ttl * 9 / 10)
				if _, err := holder.Renew(t.Context(), ttl); err != nil {
					t.Fatal(err)
				}
				claimtest.Refused(t, other)
			}
			st, err := here.(driver.Operator).Inspect(t.Context(), "r")
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Held < 0 || st.Holders[0].Left <= 0 || st.Holders[0].Left > ttl {
				t.Errorf("%v, %v", st, err)
			}
			if took := until(t, other, time.Second/10); took > whole+time.Second || took < whole-time.Second {
				t.Errorf("granted %v after the last renewal, want %v", took, whole)
			}
		})
	}
}

// elsewhen is a store as a machine sees it whose wall clock is off.
type elsewhen struct {
	*hashed
	off time.Duration
}

var since = regexp.MustCompile(`"since":(-?\d+)`)

func (s elsewhen) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	value = since.ReplaceAllFunc(value, func(m []byte) []byte {
		n, err := strconv.ParseInt(string(m[len(`"since":`):]), 10, 64)
		if err != nil {
			panic(err)
		}
		return []byte(`"since":` + strconv.FormatInt(n+s.off.Microseconds(), 10))
	})
	return s.hashed.Write(ctx, name, value, was, life)
}
