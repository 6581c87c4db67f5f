package leasehold

import (
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// onceSlack is the share of a period by which two runs may be closer together: a tenth of
// a day covers servers whose clocks differ, schedulers that are late, and the day in
// spring that has 23 hours.
const onceSlack = 10

// OncePer is for a job that is to run at most once in each period although many servers
// start it at about the same time: the same line in ten crontabs. Of those who ask, one is
// granted; the others get [ErrBusy] at once, and so does everybody else until nine tenths
// of period after the grant, whether the job succeeds, fails or is done in a second. The
// last tenth is for those who start the job of the next period a little early.
//
//	err := locks.Do(ctx, "daily-report", report, leasehold.OncePer(24*time.Hour))
//	if errors.Is(err, leasehold.ErrBusy) {
//		return nil // it runs, or did, elsewhere
//	}
//
// The lease is not renewed. When its holder is killed, nobody is granted before it ends:
// by default with the nine tenths, so that a job that was begun counts as run. TTL sets how
// long after the grant it lasts at most; then the job is over, and where it was killed
// another may begin it again. The durations are the engine's, so clocks need not agree. The engine is
// first asked for [Options.TTL], and then to make that as long as it is to be, unless it ties leases to
// processes ([driver.Features.Resumes]): an attempt whose answer was lost holds others up for Options.TTL
// at most. Where the answer to the second call is lost, and what gives the lease up too, the period is.
//
// It is [AtLeast], TTL, [NoRenew] and Wait(0), and is refused where AtLeast is. Beside it [ErrInvalidOption] are
// AtLeast, which would say the same with another length; a [Wait] above 0, after which the job would run once
// more in the period that it has run in; and [Shared] without [Limit], which keeps nobody out. What runs at most
// once may not run at all, or stop half-way; see fence.Once for an effect that must happen
// exactly once.
func OncePer(period time.Duration) Option {
	return func(r *request) {
		r.oncePer = r.positive("OncePer", period) - period/onceSlack
		r.noRenew = true
	}
}

// settle fills in what follows from options in any order.
func (r *request) settle() {
	if r.oncePer == 0 {
		return
	}
	switch {
	case r.atLeast > 0:
		r.fail("OncePer and AtLeast(%v) exclude each other: the period is how long the resource is kept", r.atLeast)
	case r.wait > 0 && r.wait < forever:
		r.fail("OncePer and Wait(%v) exclude each other: what has waited would run again in the same period", r.wait)
	case r.mode == driver.Shared && r.limit == 0:
		r.fail("OncePer and Shared without a Limit exclude each other: nobody would be kept out")
	}
	if !r.hasTTL {
		r.ttl = r.oncePer
	}
	r.atLeast = r.oncePer
	r.wait = 0
}
