package leasehold

import (
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// onceSlack divides a period into the time by which two runs may be closer together. A tenth of
// a day covers servers whose clocks differ, late schedulers, and the day in spring that has 23
// hours.
const onceSlack = 10

// OncePer is for a job that many servers start at about the same time, but that must run only once
// per period: the same line in ten crontabs, say. One caller is granted the lease. All others get
// [ErrBusy] at once, until nine tenths of period after the grant, whether the job succeeds, fails
// or is done in a second. The last tenth is for servers that start the job of the next period a
// little early, so that two grants may be nine tenths of period apart.
//
//	err := locks.Do(ctx, "daily-report", report, leasehold.OncePer(24*time.Hour))
//	if errors.Is(err, leasehold.ErrBusy) {
//		return nil // it runs, or did, elsewhere
//	}
//
// The lease is not renewed. If its holder is killed, nobody else is granted the resource before the
// lease ends. By default that is after the nine tenths, so that a job that has begun counts as run.
// TTL sets a shorter limit, after which the job is over: if it was killed, another caller may begin
// it again. The engine measures these durations, so clocks need not agree.
//
// OncePer first requests a lease of [Options.TTL] and then lengthens it, unless the engine ties
// leases to processes: its [driver.Features] lack Resumes. So if the answer to the first request is
// lost, others are refused for Options.TTL at most. They are refused for the whole time only if the
// answer to the second request is lost and the clean-up fails as well. Either way the job may not
// run in this period unless somebody calls again. [Locker.AcquireAll] lengthens no lease before it
// has all of them.
//
// OncePer combines [AtLeast], TTL, [NoRenew] and Wait(0), and engines without AtLeast refuse it. It
// refuses three options with [ErrInvalidOption]. AtLeast would set another length, [Shared] without
// [Limit] keeps nobody out, and with a [Wait] above 0 the job would run twice in a period.
//
// A job that runs at most once may not run at all, or stop halfway. For an effect that must
// happen exactly once, see fence.Once.
func OncePer(period time.Duration) Option {
	return func(r *request) {
		r.oncePer = r.positive("OncePer", period) - period/onceSlack
		r.noRenew = true
	}
}

// applyOncePer sets the options that follow from OncePer, after all options of the call.
func (r *request) applyOncePer() {
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
	r.atLeast = r.oncePer
	r.wait = 0
}
