package leasehold

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
)

// A request is the options of one call.
type request struct {
	mode       driver.Mode
	limit      int
	weight     int
	ttl        time.Duration
	wait       time.Duration // forever, unless set
	maxHold    time.Duration
	atLeast    time.Duration
	oncePer    time.Duration
	noRenew    bool
	reentrant  bool
	yields     bool
	leads      bool             // a campaign of Lead
	resumes    bool             // a Resume
	keeps      bool             // the lease may be kept
	together   bool             // the call is part of AcquireAll
	preference *int             // nil: without Preference
	each       []ownOptions     // the options that For gave to names
	said       *details.Details // details of the call; nil: those of Options apply
	who        *description     // the description by Options, replaced by one of the call
	err        error
}

// positive records an error when d is not a positive duration, or above maxTTL.
func (r *request) positive(option string, d time.Duration) time.Duration {
	if d <= 0 {
		r.fail("%s(%v) is not positive", option, d)
	} else if d > maxTTL {
		r.fail("%s(%v) is above %v", option, d, maxTTL)
	}
	return d
}

// fail records an ErrInvalidOption, unless there is an error already.
func (r *request) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
	}
}

// forever is how long a call without Wait waits.
const forever = time.Duration(math.MaxInt64)

// fill applies and checks the options of a call, before anything is done.
func (r *request) fill(l *Locker, name string, opts []Option) (err error) {
	r.who, r.wait = l.who, forever
	r.apply(opts)
	r.applyOwn(name)
	r.applyOncePer()
	r.ttl = cmp.Or(r.ttl, r.oncePer, l.opts.TTL)
	if r.preference != nil {
		r.prefer()
	}
	switch {
	case r.err != nil:
		return r.err
	case r.mode == driver.Shared && !l.features.Shared, r.weight > 1 && !l.features.Weights,
		r.atLeast > 0 && !l.features.Lingers, r.yields && !l.features.Tells, r.preference != nil && l.operator == nil:
		return ErrUnsupported
	case r.limit > 0 && r.weight > r.limit:
		return fmt.Errorf("%w: Weight(%d), Limit(%d)", ErrTooHeavy, r.weight, r.limit)
	}
	if err := driver.CheckName(name); err != nil {
		return err
	}
	r.keeps = l.opts.Keep > 0 && r.keepable()
	if err := r.describe(l); err != nil {
		return err
	}
	r.ttl, err = l.checkTTL(r.ttl)
	return err
}

// apply applies options to the request.
func (r *request) apply(opts []Option) {
	for _, opt := range opts {
		if opt == nil {
			opt = func(r *request) { r.fail("an Option is nil") }
		}
		opt(r)
	}
}

// firstTTL returns the TTL of the first request to the engine. If its answer is lost, the grant
// that is left behind lasts no longer. So with OncePer, a job that was never begun does not count
// as run for the whole period. Leases that an engine ties to processes end with them, and get their
// full TTL at once.
func (r *request) firstTTL(l *Locker) time.Duration {
	if r.oncePer == 0 || !l.features.Resumes {
		return r.ttl
	}
	ttl, _ := l.checkTTL(l.opts.TTL) // rounded up; New has checked it
	return min(ttl, r.ttl)
}

// maxTTL is ten years: longer is a mistake, and still far below the range of engines' integers.
const maxTTL = 10 * 365 * 24 * time.Hour

// checkTTL returns ttl rounded up to what the engine can serve.
func (l *Locker) checkTTL(ttl time.Duration) (time.Duration, error) {
	f, drift := l.features, l.opts.drift(ttl)
	switch {
	case ttl <= 0:
		return 0, fmt.Errorf("%w: TTL %v is not positive", ErrInvalidOption, ttl)
	case ttl > maxTTL:
		return 0, fmt.Errorf("%w: TTL %v is above %v", ErrInvalidOption, ttl, maxTTL)
	case f.SessionTTL > 0 && ttl != f.SessionTTL:
		return 0, fmt.Errorf("%w: TTL %v: %w, leases hang on the driver's session, whose length gives them all %v", ErrInvalidOption, ttl, ErrUnsupported, f.SessionTTL)
	case ttl < f.MinTTL:
		err := fmt.Errorf("%w: TTL %v: %w, the least is %v", ErrInvalidOption, ttl, ErrUnsupported, f.MinTTL)
		if f.LeastBy != "" {
			err = fmt.Errorf("%w, %s", err, f.LeastBy)
		}
		return 0, err
	case ttl <= drift:
		return 0, fmt.Errorf("%w: TTL %v leaves nothing after the drift of %v", ErrInvalidOption, ttl, drift)
	}
	if f.Step > 0 {
		ttl = (ttl + f.Step - 1) / f.Step * f.Step
	}
	return ttl, nil
}

// drift returns how much earlier than its TTL a lease ends for its holder.
func (o *Options) drift(ttl time.Duration) time.Duration {
	return time.Duration(float64(ttl)*o.Drift) + driftFloor
}
