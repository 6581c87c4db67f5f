package leasehold

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// Preference sets the rank of a candidate in [Locker.Lead]. When a candidate of higher preference
// waits, a leader with a Preference steps down: its context ends with the cause [ErrOutranked]. If
// a third candidate, with a Preference below that one's, is granted the lease first, it gives it up
// before its callback begins. This overrides the order of the queue. A new version that is being
// rolled out can use its build number, for example.
//
// n is at least -1,000,000,000 and at most 1,000,000,000. A candidate without Preference has 0; as a
// leader it steps down for nobody. Equal candidates do not replace each other. If the preferred
// candidate dies while it waits, nobody leads until its place in the queue ends.
//
// Candidates of other processes see the preference in [Details], and nothing verifies it. Of several
// candidates in one Locker they see the first. If the engine cannot be asked who waits, the leader
// goes on, and asks again. Preference implies [Yields]. Calls other than Lead refuse it with
// [ErrInvalidOption], and engines without [driver.Operator] with [ErrUnsupported].
func Preference(n int) Option {
	return func(r *request) {
		if n > details.MostPreference || n < -details.MostPreference {
			r.fail("Preference(%d) is beyond %d", n, details.MostPreference)
		}
		r.preference, r.yields = &n, true
	}
}

// prefer adds the preference to the details, where other candidates see it.
func (r *request) prefer() {
	if !r.leads {
		r.fail("Preference(%d) is for Lead", *r.preference)
	}
	r.ownDetails().Preference = *r.preference
}

// lookBound limits how long a leader that was just elected asks who waits before its callback
// begins. After that it leads, and asks again.
const lookBound = time.Second

// giveWay reports whether the leader that was just elected must step down at once. If not, it
// starts watch.
func (t *term) giveWay(ctx context.Context, end context.CancelCauseFunc) bool {
	outranked, err := t.look(ctx, lookBound)
	if outranked {
		t.stepDown(end)
		return true
	}
	t.locker.calls.startCleanUp(func() { t.watch(ctx, err, end) })
	return false
}

// watch ends the term once a candidate of higher preference waits. It returns when the term is
// over or the Locker is closed. err is the error of the last look.
func (t *term) watch(ctx context.Context, err error, end context.CancelCauseFunc) {
	var recalls <-chan struct{} // nil: nested in a lease that does not yield
	if w := t.lease.wanted; w != nil {
		recalls = w.recalls
	}
	for fails := 0; ; fails++ {
		pause := forever
		if err == nil {
			fails = 0
		} else {
			pause = waiting.Backoff(fails, 20*time.Millisecond, termPause)
		}
		if _, over := waiting.Sleep(ctx, t.locker.calls.closing, recalls, pause); over != nil {
			return
		}
		var outranked bool
		if outranked, err = t.look(ctx, callBound); outranked {
			t.stepDown(end)
			return
		}
	}
}

// look reports whether a candidate of higher preference waits, in this process or another.
func (t *term) look(ctx context.Context, bound time.Duration) (outranked bool, err error) {
	if t.locker.queue.isOutranked(t.name, *t.preference) {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	state, err := t.locker.Inspect(ctx, t.name)
	for _, w := range state.Waiters {
		outranked = outranked || w.Details().Preference > *t.preference
	}
	return outranked, err
}

// stepDown ends the term for a candidate of higher preference.
func (t *term) stepDown(end context.CancelCauseFunc) {
	t.lease.traceOutranked()
	end(ErrOutranked)
}
