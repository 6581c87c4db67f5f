package caslock

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A clock is the record.Clock of one who has none in common with others: it goes by what was
// seen of each claim's beat.
type clock struct {
	now   time.Time
	since map[uint64]time.Time // when each beat was seen first; never changed
	floor uint64               // what the number of a new grant is not below
}

// Now is by this machine's wall clock, and only shown.
func (c *clock) Now() int64 { return c.now.UnixMicro() }

// Left is what is left of the claim's TTL, and for the last hundredth of it and 2 ms longer.
func (c *clock) Left(of *record.Claim) time.Duration {
	seen, ok := c.since[of.Beat]
	if !ok { // it was made in this call
		return of.TTL
	}
	return min(of.TTL, of.TTL+drift(of.TTL)-c.now.Sub(seen))
}

// Start has nothing to note but the beat. A new claim's beats begin anywhere, so that no other claim
// ever has the same, and grow by any step: a store that goes back has a former beat again, and the
// next one must not be that which was seen after it. JSON's numbers are exact up to 53 bits, which is
// room for a hundred years of renewals each second.
func (c *clock) Start(of *record.Claim) {
	if of.Beat == 1 {
		of.Beat = 1 + rand.Uint64N(1<<52)
	} else {
		of.Beat += rand.Uint64N(1 << 20)
	}
}

// drift is how much the clocks of a holder and of those who watch it may differ in a TTL: as
// much as the core keeps back by default.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// seen returns since when each beat of the record was seen: those of before, and the others
// since then.
func seen(r *record.Record, before map[uint64]time.Time, then time.Time) map[uint64]time.Time {
	all := make(map[uint64]time.Time, len(r.Claims))
	for i := range r.Claims {
		beat := r.Claims[i].Beat
		if first, ok := before[beat]; ok && first.Before(then) {
			all[beat] = first
		} else {
			all[beat] = then
		}
	}
	return all
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
