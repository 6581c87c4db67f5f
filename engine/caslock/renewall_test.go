package caslock_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// sharers are renewals of one resource's leases, one for each owner.
func sharers(t *testing.T, d driver.Driver, owners ...string) (all []driver.Renewal) {
	for _, owner := range owners {
		c := claimOf(t, d, driver.Request{Owner: owner, Mode: driver.Shared})
		claimtest.Granted(t, c)
		all = append(all, driver.Renewal{Claim: c, TTL: ttl})
	}
	return all
}

// Leases of one resource are renewed by one write.
func TestSharersAreRenewedTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &counting{}
		d := process(t, store)
		all := sharers(t, d, "a", "b", "c", "d")
		before := store.last
		d.(driver.BatchRenewer).RenewAll(t.Context(), all)
		for _, r := range all {
			if r.Err != nil || r.Grant.Fence == 0 {
				t.Errorf("%v, %v", r.Grant, r.Err)
			}
		}
		if n := store.last - before; n != 1 {
			t.Errorf("%d writes for 4 leases of one resource", n)
		}
	})
}

// What a renewal found to be over is over for everybody, also for a process that has not watched
// it for so long.
func TestTogetherLostIsLostEverywhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &counting{}
		d, other := process(t, store), process(t, store)
		all := sharers(t, d, "a", "b")
		time.Sleep(2 * ttl)
		d.(driver.BatchRenewer).RenewAll(t.Context(), all)
		for _, r := range all {
			if !errors.Is(r.Err, driver.ErrLost) {
				t.Errorf("renewed after two TTLs: %v, %v", r.Grant, r.Err)
			}
		}
		if g, err := claimOf(t, other, driver.Request{Owner: "a", Mode: driver.Shared}).Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
			t.Errorf("what was lost is renewed elsewhere: %v, %v", g, err)
		}
	})
}

// A hanging store has some names that it does not answer for.
type hanging struct {
	*counting
	hangs func(name string) bool
}

func (s *hanging) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if s.hangs != nil && s.hangs(name) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return s.counting.Write(ctx, name, value, was, life)
}

// However many resources hang, all others are asked for before half of the time is over.
func TestManyThatHangHoldBackNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &hanging{counting: &counting{}}
		d := process(t, store)
		var all []driver.Renewal
		const many = 300
		for i := range many {
			c := claimOf(t, d, driver.Request{Resource: strconv.Itoa(i), Owner: "o"})
			claimtest.Granted(t, c)
			all = append(all, driver.Renewal{Claim: c, TTL: ttl})
		}
		hangs := func(name string) bool { return name[len(name)-1] < '5' }
		store.hangs = hangs
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began, told := time.Now(), make([]time.Duration, many)
		for i := range all {
			all[i].Answered = func() { told[i] = time.Since(began) }
		}
		d.(driver.BatchRenewer).RenewAll(ctx, all)
		for i := range all {
			if !hangs(strconv.Itoa(i)) && (all[i].Err != nil || told[i] > 1100*time.Millisecond) {
				t.Fatalf("renewed after %v of 2s: %v", told[i], all[i].Err)
			}
		}
	})
}

// A write without an answer leaves all of its sharers unsure, who are renewed together all the same.
func TestSharersAreRenewedTogetherAfterALostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &counting{}
		l := &link{Store: store}
		d := process(t, l)
		all := sharers(t, d, "a", "b", "c", "d")
		l.next = "lose answer"
		d.(driver.BatchRenewer).RenewAll(t.Context(), all)
		for i := range all {
			if all[i].Err == nil || errors.Is(all[i].Err, driver.ErrLost) {
				t.Errorf("renewed without an answer: %v", all[i].Err)
			}
			all[i].Err = nil
		}
		before := store.last
		d.(driver.BatchRenewer).RenewAll(t.Context(), all)
		for _, r := range all {
			if r.Err != nil {
				t.Errorf("renewed after a lost answer: %v", r.Err)
			}
		}
		if n := store.last - before; n != 1 {
			t.Errorf("%d writes for 4 leases of one resource", n)
		}
	})
}

// They are renewed by one write also if the answer to an attempt of each was lost, at another version of the record.
func TestSharersAreRenewedTogetherAfterUnknownAttempts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &counting{}
		l := &link{Store: store}
		d := process(t, l)
		var all []driver.Renewal
		for _, owner := range []string{"a", "b", "c", "d"} {
			c := claimOf(t, d, driver.Request{Owner: owner, Mode: driver.Shared})
			l.next = "lose answer"
			if _, err := c.Try(t.Context()); err == nil {
				t.Fatal("granted without an answer")
			}
			claimtest.Granted(t, c)
			all = append(all, driver.Renewal{Claim: c, TTL: ttl})
		}
		before := store.last
		d.(driver.BatchRenewer).RenewAll(t.Context(), all)
		if n := store.last - before; n != 1 {
			t.Errorf("%d writes for 4 leases of one resource", n)
		}
	})
}

// After a release, only the renewal of the owner's lease makes the claim hold it, not a note. A renewal without an
// answer may have.
func TestWhatAReleasedClaimMayGiveUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &link{Store: &counting{}}
		d := process(t, l)
		released := claimOf(t, d, driver.Request{Owner: "a"})
		claimtest.Granted(t, released)
		claimtest.Released(t, released)
		next := claimOf(t, d, driver.Request{Owner: "a"})
		claimtest.Granted(t, next)
		if err := released.Note(t.Context(), "noted"); err != nil {
			t.Fatal(err)
		}
		if err := released.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release after a note: %v, want ErrLost", err)
		}
		if _, err := next.Renew(t.Context(), ttl); err != nil {
			t.Errorf("the next claim's lease: %v", err)
		}
		l.next = "lose answer"
		if _, err := released.Renew(t.Context(), ttl); err == nil || errors.Is(err, driver.ErrLost) {
			t.Fatalf("renewed without an answer: %v", err)
		}
		if err := released.Release(t.Context(), driver.End{}); err != nil {
			t.Errorf("Release after a renewal without an answer: %v", err)
		}
		if _, err := next.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the lease: %v, want ErrLost", err)
		}
	})
}
