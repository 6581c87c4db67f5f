package redislock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever waits is told after ctxPollAfter and before twice that, however many wait; and one timer stands when nobody does.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p patience
		for i := range 50 {
			began := time.Now()
			soon := p.soon()
			go func() {
				<-soon
				if took := time.Since(began); took < ctxPollAfter || took > 2*ctxPollAfter {
					t.Errorf("told after %v", took)
				}
			}()
			time.Sleep(time.Duration(i) * ctxPollAfter / 20)
		}
		time.Sleep(3 * ctxPollAfter)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.next != nil {
			t.Error("its timer goes on though nobody waits")
		}
	})
}

// A context that ends is heard of: at its deadline, and soon after it was cancelled.
func TestPatienceOfAContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p patience
		never := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if began := time.Now(); p.answered(ctx, never) || time.Since(began) > 0 {
			t.Errorf("it waited for %v where its deadline is sooner", time.Since(began))
		}
		if began := time.Now(); p.answered(t.Context(), never) || time.Since(began) > 2*ctxPollAfter {
			t.Errorf("it waited for %v", time.Since(began))
		}
		done := make(chan struct{}, 1)
		done <- struct{}{}
		if !p.answered(t.Context(), done) {
			t.Error("an answer that came was not seen")
		}
	})
}
