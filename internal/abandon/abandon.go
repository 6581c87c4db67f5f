// Package abandon returns early from calls that ignore their context.
//
// Many clients of engines take no context, or check it only now and then. A call to such a
// client runs in a goroutine of its own, and its caller returns when the context ends. The call
// continues:
//
//   - Its outcome is unknown to the caller, and it may still take effect. If a later call must not
//     overtake it, it keeps the lock that the later one waits for, as a claim of zklock does.
//   - Its result is dropped, unless [Terms.Late] takes it, for example to close it. So it must not
//     write to variables that its caller reads: it returns everything.
//   - It ends when its client is closed. Close of an engine closes the client and does not wait for
//     the call.
package abandon

import (
	"context"
	"time"
)

// Terms control how a call is abandoned. The zero Terms return as soon as the context ends, and
// drop the call's result.
type Terms[T any] struct {
	// Grace is how long to wait for the call after its context has ended: a call that does check
	// the context may return more.
	Grace time.Duration
	// Late, if not nil, is called in another goroutine with the result of an abandoned call.
	Late func(T, error)
}

// Call returns the result of call. If ctx ends first, it returns ctx.Err, and call continues in
// the background. call always runs, so that it can give back what its caller has reserved for
// it.
func Call[T any](ctx context.Context, call func() (T, error)) (T, error) {
	return Terms[T]{}.Call(ctx, call)
}

// Within calls f, and returns when f has, or after d. f then continues in the background.
func Within(d time.Duration, f func()) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_, _ = Call(ctx, func() (struct{}, error) { f(); return struct{}{}, nil })
}

// Call is like the function [Call].
func (t Terms[T]) Call(ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1) // so that a call that was left can end
	go func() {
		value, err := call()
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(t.Grace)
	defer grace.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-grace.C:
	}
	if t.Late != nil {
		go func() {
			a := <-answers
			t.Late(a.value, a.err)
		}()
	}
	var none T
	return none, ctx.Err()
}
