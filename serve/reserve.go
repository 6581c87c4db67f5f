package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// reservedFor is how long a name is reserved if the call does not say. Until the grant is known, and
// lengthened, it is for reservedAtFirst: nobody knows its owner if the answer is lost.
const reservedFor, reservedAtFirst = 8 * time.Hour, time.Minute

var errOutdated = errors.New("the store has answered too late to tell which run has finished: repeat the call")

// reserves returns why a person cannot hold a name; nil: a person can.
func (s *Server) reserves() error {
	if s.features.SessionTTL > 0 || !s.features.Resumes {
		return fmt.Errorf("%w: reservations, because leases hang on a session of the instance", driver.ErrUnsupported)
	}
	return nil
}

// reserve acquires a name for a person. Nobody renews the lease, and it has a reason.
func (s *Server) reserve(w http.ResponseWriter, r *http.Request, c *wire.ReserveCall) {
	if err := s.reserves(); err != nil {
		s.failed(w, err)
		return
	}
	v := w.(*visit)
	note, err := reservation(c, v.client.Name)
	if err != nil {
		s.rejected(w, err)
		return
	}
	v.Reason = c.Reason
	whole := cmp.Or(c.For, wire.Millis(reservedFor))
	if err := s.checkTTL(whole); err != nil {
		s.rejected(w, err)
		return
	}
	a := &attempt{s: s, received: time.Now(), came: v.came, by: v.who(), whole: whole}
	a.call = wire.AcquireCall{Claim: wire.Claim{Name: c.Name, Note: note}, TTL: min(whole, wire.Millis(reservedAtFirst)), Wait: c.Wait}
	s.serveAttempt(w, r, a)
}

// reservation returns the note of a reservation.
func reservation(c *wire.ReserveCall, client string) (note string, err error) {
	d := details.Details{Kind: details.Reserved, User: cmp.Or(c.User, client), Text: c.Reason}
	switch {
	case strings.TrimSpace(c.Reason) == "":
		return "", errors.New("the reason is missing: it is what others see")
	case c.For < 0:
		return "", errors.New("for_ms is negative")
	}
	if err := d.Check(); err != nil {
		return "", err
	}
	return d.Note(), nil
}

// reset ends the holds of a name that have no owner.
func (s *Server) reset(w http.ResponseWriter, r *http.Request, c *wire.ResetCall) {
	if err := driver.CheckName(c.Name); err != nil {
		s.rejected(w, err)
		return
	}
	token, err := strconv.ParseUint(cmp.Or(c.Token, "0"), 10, 64)
	if err != nil {
		s.invalid(w, errors.New("token is no number"))
		return
	}
	v := about(w, c.Name, "")
	s.operate(v, r, 2*callBound, s.heldOrFailed, func(ctx context.Context) error { return s.endKept(ctx, c.Name, token, v.who()) })
}

// endKept ends all holds of a name that have no owner. The engine itself checks again that they
// have none. If somebody holds the name, the error is a *driver.Busy. If there is a hold with a
// greater token than token, unless that is 0, the error is driver.ErrLost. A hold that begins
// between the look and the eviction is ended too, so both together take stall at most.
func (s *Server) endKept(ctx context.Context, name string, token uint64, by string) error {
	if s.operator == nil {
		return fmt.Errorf("%w: resets", driver.ErrUnsupported)
	}
	for ended := false; ; {
		asked := s.pulse.clock.Now()
		state, err := s.operator.Inspect(ctx, name)
		if err != nil {
			return err
		}
		kept := false
		for _, h := range state.Holders {
			switch {
			case h.Owner.Reveal() == "" && (token == 0 || h.Fence <= token):
				kept = true
			case ended: // it was granted after the reset
			case h.Owner.Reveal() == "":
				return fmt.Errorf("%w: another run has finished since", driver.ErrLost)
			default:
				return &driver.Busy{Holder: h}
			}
		}
		if !kept {
			return nil
		}
		left := stall - s.pulse.clock.Now().Sub(asked)
		if left < 0 { // another run may have finished meanwhile
			return errOutdated
		}
		bounded, cancel := context.WithTimeout(ctx, left)
		err = s.operator.Evict(bounded, name, "", "reset")
		cancel()
		if err != nil && !errors.Is(err, driver.ErrLost) {
			return err
		}
		if err == nil && !ended {
			ended = true
			s.hub.reset(name, by)
		}
	}
}
