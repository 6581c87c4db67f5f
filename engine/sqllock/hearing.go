package sqllock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// ErrDeaf: messages about the locks do not reach [Options.Listen], so waiters poll. Locks work
// otherwise.
var ErrDeaf = errors.New("the Listener hears nothing of the locks: it needs a connection to their own database, not through a pool in transaction mode")

const (
	// From one proof that the Listener hears to the next, which a pool may deliver by
	// chance. Every driver that listens on the channel hears each.
	proveFirst, proveLast = keepPlace, time.Minute
	// proveWithin is how long Listening waits for its own.
	proveWithin = 3 * time.Second
)

// A hearing is what a watcher knows of its Listener. It may listen at another database, or
// on a connection that a pool has given to others: all that tells is a token that was told
// in the database of the locks, and comes back.
type hearing struct {
	on    bool          // it says that it listens
	hears bool          // the last token came back in time
	token string        // on its way; "": none
	sent  time.Time     // the last token
	every time.Duration // from one token to the next
}

// ended: it listens no longer. What begins anew proves itself anew.
func (h *hearing) ended() { *h = hearing{sent: h.sent} }

// next returns the token to tell now; "": none, at most one a second.
func (h *hearing) next(now time.Time) string {
	quiet := now.Sub(h.sent)
	if !h.on || quiet < proveFirst {
		return ""
	}
	if h.token != "" {
		h.hears, h.every = false, 0 // too late
	}
	if quiet < h.every {
		return ""
	}
	h.token, h.sent, h.every = newToken(), now, max(proveFirst, min(2*h.every, proveLast))
	return h.token
}

// heard reports whether message is the token.
func (h *hearing) heard(message string) bool {
	if message == "" || message != h.token {
		return false
	}
	h.token, h.hears = "", true
	return true
}

// newToken is longer than what any waiter is called.
func newToken() string { return "heard:" + rand.Text() }

// Listening returns nil if [Options.Listen] receives the database's messages about the locks. It
// listens on a connection of its own, sends itself a message and waits for it, for at most 3 s.
// An error that matches [ErrDeaf] means that waiters poll, and says why if possible. Any other
// error means that the test itself failed.
func (d *Driver) Listening(ctx context.Context) error {
	if d.watch.listener == nil {
		return fmt.Errorf("%w (there is no Listener)", ErrDeaf)
	}
	token := newToken()
	began, heard, ended := make(chan struct{}, 1), make(chan struct{}, 1), make(chan error, 1)
	listening, stop := context.WithCancel(ctx)
	go func() {
		ended <- d.watch.listener.Listen(listening, d.watch.channel, func(message string) {
			switch message {
			case "":
				signal(began)
			case token:
				signal(heard)
			}
		})
		close(ended)
	}()
	defer func() {
		stop()
		for range ended {
		}
	}()
	select {
	case <-began:
	case err := <-ended:
		return deaf(ctx, err)
	}
	if err := d.exec(ctx, d.texts.wake, list(token)); err != nil {
		return err
	}
	select {
	case <-heard:
		return nil
	case err := <-ended:
		return deaf(ctx, err)
	case <-time.After(proveWithin):
		return ErrDeaf
	}
}

// deaf is why listening has ended.
func deaf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrDeaf, err)
}
