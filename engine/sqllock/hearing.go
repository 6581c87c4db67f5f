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
	// Time between two proofs that the Listener receives messages. A pool may deliver one by
	// chance, so one proof is not enough. Every driver that listens on the channel receives each.
	proveFirst, proveLast = keepPlace, time.Minute
	// proveWithin is how long Listening waits for its message.
	proveWithin = 3 * time.Second
)

// A hearing is what a watcher knows of its Listener. The Listener may be connected to another
// database, or use a connection that a pool has given to others. The only proof is a token that
// was sent through the locks' database and comes back.
type hearing struct {
	on    bool          // the Listener says that it listens
	hears bool          // the last token came back in time
	token string        // the token in flight; "": none
	sent  time.Time     // when the last token was sent
	every time.Duration // time between two tokens
}

// ended resets the state: the Listener must prove itself again.
func (h *hearing) ended() { *h = hearing{sent: h.sent} }

// next returns the token to send now, or "". It returns at most one a second.
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

// newToken returns a token, longer than any waiter's name.
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

// deaf returns why listening has ended.
func deaf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrDeaf, err)
}
