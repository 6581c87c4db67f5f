package leasehold

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// Causes of a term's context.
var (
	// ErrResigned: [Locker.Resign] ended the term.
	ErrResigned = errors.New("resigned from leading")
	// ErrOutranked: a candidate of a higher [Preference] waits.
	ErrOutranked = errors.New("a candidate of higher preference waits")
)

// termPause is how long a leader pauses after a term. On an engine without a queue the others
// poll, and each of them asks at least once in this time. It also limits the load of a callback
// that returns at once.
const termPause = 2 * waiting.PollLast

// Lead campaigns for name, calls fn while it leads, and steps down when fn returns. It then
// campaigns again, behind those already waiting, until ctx ends.
//
// fn's context ends with its term: when the lease is lost, Resign is called, a candidate of higher
// [Preference] waits, or ctx ends. [FromContext] returns its lease, whose token grows from term to
// term. When the context ends, fn must return soon. The lease is renewed until fn has returned, and
// is given up only then. Unless the lease is lost, nobody else leads while fn still runs, on this
// or any other machine. Like every holder, fn sends its token with each write.
//
// If fn returns nil, its term ends. If fn returns an error, Lead ends and returns it. An error
// that fn returns after the end of its term does not end Lead.
//
// Apart from that, Lead returns an error that wraps context.Cause(ctx), or an error of Acquire. The
// first campaign returns any such error. Later ones return only [ErrBusy] and errors that no
// further attempt can help. ErrBusy means that a campaign took longer than Wait. Lead refuses
// Shared and Limit with [ErrInvalidOption]. After an error nothing is held, unless the error says
// that the outcome of the last release is unknown.
func (l *Locker) Lead(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option) error {
	r := request{leads: true}
	err := r.fill(l, name, opts)
	if err == nil && r.mode == driver.Shared {
		err = fmt.Errorf("%w: a leader shares with nobody", ErrInvalidOption)
	}
	if err != nil {
		return wrap("lead", name, err)
	}
	opts = append(slices.Clip(opts), func(r *request) { r.leads = true })
	var unknown error // of the last release
	for campaigns, fails := 0, 0; ; campaigns++ {
		t := term{locker: l, name: name, fn: fn, preference: r.preference}
		err := l.Do(ctx, name, t.run, opts...)
		if t.elected {
			if unknown = err; errors.Is(err, ErrLost) { // then nothing is held
				unknown = nil
			}
		}
		pause := termPause
		switch {
		case t.failed:
			return err
		case ctx.Err() != nil:
			return wrap("lead", name, errors.Join(context.Cause(ctx), unknown))
		case t.elected:
			fails = 0
		case campaigns == 0, waiting.Final(err), errors.Is(err, ErrBusy):
			return errors.Join(err, unknown)
		default: // the engine failed: elect a leader as soon as it is back
			pause = waiting.Backoff(fails, 20*time.Millisecond, termPause)
			fails++
		}
		if _, err := waiting.Sleep(ctx, l.calls.closing, nil, pause); err != nil {
			return wrap("lead", name, errors.Join(err, unknown))
		}
	}
}

// A term is one campaign of Lead and its outcome.
type term struct {
	locker *Locker
	name   string
	fn     func(ctx context.Context) error

	preference *int // nil: the leader steps down for nobody
	lease      *Lease

	resign  context.CancelCauseFunc
	elected bool // the lease was granted; fn is not called if a candidate of higher preference waits
	failed  bool // fn returned an error before the term had ended
}

// run runs the term of a leader that was just elected.
func (t *term) run(ctx context.Context) error {
	lease, _ := FromContext(ctx)
	live, end := context.WithCancelCause(ctx)
	t.lease, t.elected, ctx = lease, true, leaseContext{live, lease}
	if t.preference != nil && t.giveWay(ctx, end) {
		return nil
	}
	t.resign = end
	t.locker.terms.Store(t.name, t)
	defer func() {
		t.locker.terms.CompareAndDelete(t.name, t) // not if the term was lost and another Lead has been elected meanwhile
		end(nil)
	}()
	err := t.fn(ctx)
	if ctx.Err() != nil {
		return nil
	}
	t.failed = err != nil
	return err
}

// Resign ends the current term of this Locker's Lead on name, and reports whether there was one.
// The context of its callback ends with the cause [ErrResigned]. When the callback has returned,
// the next in line leads, and Lead campaigns again. Resign does not wait for this. To leave the
// election permanently, end the context of Lead.
func (l *Locker) Resign(name string) bool {
	t, leads := l.terms.Load(name)
	if !leads {
		return false
	}
	t.(*term).resign(ErrResigned)
	return true
}

// Observe yields the leader of name: first the current one, then each change that it sees. It
// ends when ctx ends, the Locker is closed or the caller stops. It takes no part in the
// election. The zero Holder means that there is no leader.
//
// Observe polls the engine at the given interval. It sees a change up to one interval late, and
// may miss a shorter term. The leader that it yields may have been succeeded already. Use it for
// dashboards, and to find the leader to talk to. A leader that must not act beside another one
// needs the token. Leases that are handed over inside a process count as one holder.
//
// After an error, Observe continues, unless no further attempt can help, as with [ErrUnsupported]
// on an engine without [driver.Operator].
func (l *Locker) Observe(ctx context.Context, name string, every time.Duration) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		if every <= 0 {
			yield(Holder{}, wrap("observe", name, fmt.Errorf("%w: every %v is not positive", ErrInvalidOption, every)))
			return
		}
		var last Holder
		for first := true; ; {
			leader, err := l.leader(ctx, name)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if !yield(leader, err) || waiting.Final(err) {
					return
				}
			case first, leader.Owner != last.Owner, leader.Token != last.Token:
				first, last = false, leader
				if !yield(leader, nil) {
					return
				}
			}
			if _, err := waiting.Sleep(ctx, l.calls.closing, nil, every); err != nil {
				return
			}
		}
	}
}

// leader returns the holder of name, or the zero Holder. A hold that lingers has no owner and
// does not count.
func (l *Locker) leader(ctx context.Context, name string) (Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	state, err := l.Inspect(ctx, name)
	for _, h := range state.Holders {
		if h.Owner != (Owner{}) {
			return h, err
		}
	}
	return Holder{}, err
}
