package leasehold

import (
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// request is one call's wishes.
type request struct {
	mode      driver.Mode
	limit     int
	ttl       time.Duration
	hasTTL    bool
	wait      time.Duration
	hasWait   bool
	noRenew   bool
	maxHold   time.Duration
	atLeast   time.Duration
	oncePer   time.Duration
	reentrant bool
	note      string
	id        uint64 // of its events; 0: no Trace is told
	err       error
}

// positive records an error when d is not a positive duration.
func (r *request) positive(option string, d time.Duration) time.Duration {
	if d <= 0 {
		r.fail("%s(%v) is not positive", option, d)
	}
	return d
}

func (r *request) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
	}
}

// newRequest checks what a call asks for before anything is done.
func (o *Options) newRequest(f driver.Features, name string, opts []Option) (*request, error) {
	r := &request{ttl: o.TTL, note: o.Note}
	for _, opt := range opts {
		if opt == nil {
			opt = func(r *request) { r.fail("an Option is nil") }
		}
		opt(r)
	}
	r.settle()
	switch {
	case r.err != nil:
		return nil, r.err
	case r.mode == driver.Shared && !f.Shared:
		return nil, ErrUnsupported
	}
	if err := driver.CheckName(name); err != nil {
		return nil, err
	}
	if err := checkNote(r.note); err != nil {
		return nil, err
	}
	ttl, err := o.checkTTL(f, r.ttl)
	r.ttl = ttl
	return r, err
}

// firstTTL is what the engine is asked for before anything else. What an attempt without an answer leaves behind
// lasts no longer, so that a job that was never begun does not count as run in its period. Leases that an engine ties to
// processes end with them, and keep their TTL.
func (l *Locker) firstTTL(r *request) time.Duration {
	if r.oncePer == 0 || !l.features.Resumes {
		return r.ttl
	}
	ttl, _ := l.opts.checkTTL(l.features, l.opts.TTL) // rounded up; New has refused what is none
	return min(ttl, r.ttl)
}

// maxTTL is ten years: longer is a slip, and far from where engines' integers overflow.
const maxTTL = 10 * 365 * 24 * time.Hour

// checkTTL returns ttl rounded up to what an engine with f can serve.
func (o *Options) checkTTL(f driver.Features, ttl time.Duration) (time.Duration, error) {
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
	case ttl <= o.drift(ttl):
		return 0, fmt.Errorf("%w: TTL %v leaves nothing after the drift of %v", ErrInvalidOption, ttl, o.drift(ttl))
	}
	if f.Step > 0 {
		ttl = (ttl + f.Step - 1) / f.Step * f.Step
	}
	return ttl, nil
}

// drift is what is kept back of a lease of length ttl.
func (o *Options) drift(ttl time.Duration) time.Duration {
	return time.Duration(float64(ttl)*o.Drift) + driftFloor
}
