package etcdlock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A phase is what a claim has at etcd.
type phase uint8

const (
	idle    phase = iota // its key is not known to exist: none was put, or a put may still come
	queued               // its key is in the queue
	held                 // nobody is ahead, and etcd has confirmed it
	leaving              // its key is to be deleted: by Release, or by the driver
	over                 // it has no key, and none will come; the claim starts over, or is done
	ends                 // in transitions: over, or leaving as long as a put or a move may still come
)

// An event is something that may change a phase.
type event uint8

const (
	yes      event = iota // the call succeeded: the key is there, nobody is ahead, it was renewed, it was deleted
	no                    // a refusal that leaves nothing, or a key that does not exist
	unknown               // a call had no answer
	lost                  // reported by the watch, a read, or the end of a session; a holder's Request.Lost is called
	release               // the first call of Release or Linger
	unwanted              // nobody has called for the TTL, so the caller is gone
)

// A stage is a phase with the data that only that phase needs.
type stage struct {
	phase phase
	watch int              // idle and queued: the watch that has reported everything since those ahead were read; 0: none
	wake  chan struct{}    // queued: closed when Try may bring news; nil: nobody waits
	since boottime.Instant // held: since when
	cause error            // leaving and over: why
}

// transitions has the effect of each event in each phase.
var transitions = [...][unwanted + 1]phase{
	idle:    {yes: queued, no: ends, unknown: idle, lost: ends, release: ends, unwanted: ends},
	queued:  {yes: held, no: queued, unknown: queued, lost: ends, release: leaving, unwanted: leaving},
	held:    {yes: held, no: ends, unknown: held, lost: ends, release: leaving, unwanted: leaving},
	leaving: {yes: over, no: over, unknown: leaving, lost: ends, release: leaving, unwanted: leaving},
	over:    {over, over, over, over, over, over},
}

// on changes the phase as transitions says, and does what follows from that. cause is why, if it
// becomes leaving or over. Nothing else changes a phase. Requires Driver.mu.
func (p *place) on(e event, cause error) {
	was, next := p.phase, transitions[p.phase][e]
	if next == ends {
		if next = over; p.unsure.mayCome() {
			next = leaving
			if e != release {
				p.until = p.d.clock.Now() // the driver deletes a key that comes late
			}
		}
	}
	if next == was {
		return
	}
	p.phase = next
	switch next {
	case held:
		p.since = p.d.clock.Now()
		p.wakeUp()
		p.d.sweepAt(p.since.Add(holdQuietly))
		p.recallNow()
	case leaving, over:
		if p.cause == nil {
			p.cause = asLost(cause)
		}
		p.wakeUp()
		if was == held && e != unwanted {
			p.tell()
		}
		if next == over {
			p.d.remove(p)
		} else {
			p.d.sweepAt(p.until)
		}
	}
}

// tell calls Request.Lost of the claims that hold by p. Requires Driver.mu.
func (p *place) tell() {
	for _, c := range p.claims {
		if c.req.Lost != nil {
			p.d.life.Go(func() { c.req.Lost(p.cause) })
		}
	}
}

// errReleased is the cause of a place that was released. Most places end by it, so it is wrapped
// only once.
var errReleased = fmt.Errorf("%w: it was released", driver.ErrLost)

// asLost turns cause into one for a holder.
func asLost(cause error) error {
	if errors.Is(cause, driver.ErrLost) {
		return cause
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, cause)
}

// uncertain has the calls of a place that had no answer and may still be served. Other changes of
// the key, and its deletion, are not among them: they name a revision of the key, so they do nothing
// to a later one.
type uncertain struct {
	puts  []*session // the session of each put of the key; kept out by a tombstone when the place ends
	floor int64      // the largest revision seen before the first of puts was sent
	moves []*session // the session that each move of the key names; undone by the next change of the key
}

// awaiting records in puts or moves that a call that names s is sent. Call the returned function
// when the call is answered: it removes this record, and not those of other calls. Both require
// Driver.mu.
func awaiting(of *[]*session, s *session) (answered func()) {
	*of = append(*of, s)
	return func() {
		if i := slices.Index(*of, s); i >= 0 {
			*of = slices.Delete(*of, i, i+1)
		}
	}
}

// mayCome reports whether a call that leaves a key may still be served. Requires Driver.mu.
func (u *uncertain) mayCome() bool { return len(u.puts) > 0 || len(u.moves) > 0 }

// ends records that the server does not know the session s, so it refuses calls that name it.
// Requires Driver.mu.
func (u *uncertain) ends(s *session) {
	is := func(one *session) bool { return one == s }
	u.puts = slices.DeleteFunc(u.puts, is)
	u.moves = slices.DeleteFunc(u.moves, is)
}
