package natslock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// begin begins a call that publishes to a subject, and explain translates its errors. end must
// follow.
func (s *store) begin(ctx context.Context, subject string) (_ context.Context, b *bucket, end func(), err error) {
	type begun struct {
		ctx context.Context
		b   *bucket
		end func()
	}
	one, err := within(ctx, func() (one begun, err error) {
		one.ctx, one.end = s.asking(ctx, subject)
		if err = s.connected(one.ctx); err == nil {
			one.b, err = s.open(one.ctx)
		}
		if err != nil {
			one.end()
		}
		return one, explain(one.ctx, err)
	}, func(late begun, _ error) { late.end() })
	if err != nil {
		return nil, nil, nil, err
	}
	return one.ctx, one.b, one.end, nil
}

// within returns when f does, or when ctx ends; then late, if not nil, gets the result of f. The
// client holds its mutex while it connects, so none of its methods returns. If a server hangs, that
// takes seconds.
func within[T any](ctx context.Context, f func() (T, error), late func(T, error)) (T, error) {
	value, err := abandon.Terms[T]{Late: late}.Call(ctx, f)
	if err != nil && err == ctx.Err() {
		err = explain(ctx, err)
	}
	return value, err
}

// askAfter is when a call without an answer probes the server. If the bucket has no leader, the
// call has no answer although the connection works.
const askAfter = 500 * time.Millisecond

// attempt makes one call over the current connection. If the error matches [links.ErrSilent], the
// next call uses another connection.
func attempt[T any](ctx context.Context, s *store, call func(ctx context.Context) (T, error)) (T, error) {
	if s.links == nil {
		return call(ctx)
	}
	ctx, waits := s.links.Begin(ctx)
	ask := time.AfterFunc(askAfter, func() { _ = s.js.Conn().FlushTimeout(askAfter) }) // the connection then shows that the server answers
	defer ask.Stop()
	value, err := call(ctx)
	return value, waits.End(err)
}

// connected returns when there is a connection. Without one the client would keep its message, and
// publish it after the reconnection, when nobody waits for it.
func (s *store) connected(ctx context.Context) error {
	nc := s.js.Conn()
	if nc.IsConnected() {
		return nil
	}
	changed := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(changed)
	for !nc.IsConnected() {
		if nc.IsClosed() {
			return nats.ErrConnectionClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

const (
	// firstPatience is how long a question goes unanswered before it is asked again. The time grows
	// to longPatience.
	firstPatience, longPatience = 500 * time.Millisecond, 2 * time.Second
	// mostPatience is longer than an election takes, which is 4 to 10 s on an idle machine.
	mostPatience = time.Minute
)

// insist asks a question that changes nothing. It asks again, with growing pauses, until an answer
// comes or ctx ends, because servers drop questions while they elect a leader.
func insist[T any](ctx context.Context, ask func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer)
	begin := func() {
		value, err := ask(ctx)
		select {
		case answers <- answer{value, err}:
		case <-ctx.Done():
		}
	}
	for patience := firstPatience; ; patience = min(2*patience, longPatience) {
		go begin()
		select {
		case a := <-answers:
			return a.value, a.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		case <-time.After(patience):
		}
	}
}

const (
	// lookEvery is when, and how often, a call without an answer checks whether it was refused.
	lookEvery = 100 * time.Millisecond
	// looks is how many times it checks; a server refuses at once.
	looks = 50
)

// asking returns a context for a request to a subject, or to subjects that begin with it. It ends
// with ErrAuth if the server refuses the user this subject, or the question for the bucket. The
// server then does not answer, but reports it on the connection. Refusals of other calls do not
// matter.
func (s *store) asking(ctx context.Context, subject string) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	nc := s.js.Conn()
	before := nc.LastError()
	look := time.AfterFunc(lookEvery, func() {
		for range looks {
			if err := nc.LastError(); err != before && s.refuses(err, subject) {
				cancel(fmt.Errorf("%w: %w", ErrAuth, err))
			}
			if pause.For(ctx, lookEvery) != nil {
				return
			}
		}
	})
	return ctx, func() { look.Stop(); cancel(nil) }
}

// refuses reports whether an error of the connection concerns the subject, the question for the
// bucket, or hearing answers.
func (s *store) refuses(err error, subject string) bool {
	inbox := cmp.Or(s.js.Conn().Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	return errors.Is(err, nats.ErrPermissionViolation) && (strings.Contains(err.Error(), `"`+subject) ||
		strings.Contains(err.Error(), s.api("STREAM.INFO")+`"`) || strings.Contains(err.Error(), `Subscription to "`+inbox+"."))
}

// api returns the subject of a call about the bucket, without the account's prefix.
func (s *store) api(call string) string { return call + ".KV_" + s.bucket }
