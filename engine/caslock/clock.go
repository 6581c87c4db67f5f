package caslock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A clock is the record.Clock of a process that shares no clock with others. It counts from when
// each claim's beat was first seen.
type clock struct {
	now   time.Time
	since map[uint64]sighting // when each beat was seen first; never changed
	floor uint64              // the number of a new grant is at least this
}

// A sighting is when a beat was first seen. The beat may have been made long before, unless it was
// seen to arrive.
type sighting struct {
	at   time.Time
	came bool
}

// Now is this machine's wall clock. It only tells for how long a lease was held, which is shown,
// and from which an instance of the service that did not grant the lease counts at_least_ms.
func (c *clock) Now() int64 { return c.now.UnixMicro() }

// Left returns what is left of the claim's TTL, plus a hundredth of the TTL and 2 ms for drift.
func (c *clock) Left(of *record.Claim) time.Duration {
	seen, ok := c.since[of.Beat]
	if !ok { // the beat was made in this call
		return of.TTL
	}
	return min(of.TTL, of.TTL+drift(of.TTL)-c.now.Sub(seen.at))
}

// Knows reports whether the claim's beat was made in this call, or seen to arrive.
func (c *clock) Knows(of *record.Claim) bool {
	seen, ok := c.since[of.Beat]
	return !ok || seen.came
}

// Start only sets the beat. The beats of a new claim begin at a random number, so that two claims'
// beats differ, and grow by random steps. If a store goes back to an earlier state, it has an
// earlier beat again; the next one must differ from the beat that followed then. JSON's numbers are
// exact up to 53 bits, enough for a hundred years of renewals each second.
func (c *clock) Start(of *record.Claim) {
	if of.Beat == 1 {
		of.Beat = 1 + rand.Uint64N(1<<52)
	} else {
		of.Beat += rand.Uint64N(1 << 20)
	}
}

// drift is how much the clocks of a holder and of its observers may differ in a TTL: as much as the
// core reserves by default.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// seen returns when each beat of r was first seen. before has the sightings of was, the record that
// this process had before and that was current until told. Beats that are new in r were first seen
// at then. by is the clock of the call that wrote r; nil: r was read.
func seen(r, was *record.Record, before map[uint64]sighting, told, then time.Time, by *clock) map[uint64]sighting {
	all := make(map[uint64]sighting, len(r.Claims))
	for i := range r.Claims {
		c := &r.Claims[i]
		one, had := before[c.Beat]
		if !had {
			one.came = follows(c, was, told, then)
		}
		if !had || then.Before(one.at) {
			one.at = then
		}
		if by != nil && !one.came {
			_, had = by.since[c.Beat]
			one.came = !had
		}
		all[c.Beat] = one
	}
	return all
}

// follows reports whether a lease's beat, seen at then, was made after told, and not long ago. That
// is known if the claim had a smaller beat before. A store that went back shows a former beat
// again, which is not greater.
func follows(c *record.Claim, was *record.Record, told, then time.Time) bool {
	return c.Status == record.Holding && then.Sub(told) <= c.TTL/2 &&
		slices.ContainsFunc(was.Claims, func(b record.Claim) bool { return b.Owner == c.Owner && b.Beat < c.Beat })
}

// ClockFinding is [driver.ClockFinding] for a store whose clock ends no lease. A wrong clock is
// reported, but needs no action.
func ClockFinding(before, server, after time.Time) driver.Finding {
	f := driver.ClockFinding("", before, server, after)
	if f.Level > driver.Fine {
		f.Level, f.Advice = driver.Fine, ""
		f.Text, _, _ = strings.Cut(f.Text, ":")
		f.Text += ": no lease ends by it"
	}
	return f
}
