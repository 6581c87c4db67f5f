package life_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/life"
)

// Wait returns once the goroutines have ended, of which End has told them by their context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := life.New()
		const cleanUp = time.Second
		if !l.Go(func() { <-l.Done(); time.Sleep(cleanUp) }) {
			t.Fatal("Go ran nothing before End")
		}
		start := time.Now()
		l.End()
		l.Wait()
		if took := time.Since(start); took != cleanUp {
			t.Errorf("Wait took %v, want %v", took, cleanUp)
		}
	})
}

// Nothing begins after End, which may be called again.
func TestNothingBeginsAfterEnd(t *testing.T) {
	l := life.New()
	l.End()
	l.End()
	if l.Go(func() { t.Error("it ran") }) {
		t.Error("Go returned true after End")
	}
	l.Wait()
	if err := l.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("its error is %v, want context.Canceled", err)
	}
}

// What Go has begun beside End has ended when Wait returns, and nothing begins later.
func TestEndBesideGo(t *testing.T) {
	for range 200 {
		l := life.New()
		var begun, ended atomic.Int64
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for l.Go(func() { defer ended.Add(1); begun.Add(1) }) {
				}
			})
		}
		l.End()
		l.Wait()
		if b, e := begun.Load(), ended.Load(); b != e {
			t.Fatalf("%d have begun and %d have ended when Wait returns", b, e)
		}
		was := begun.Load()
		callers.Wait()
		if b := begun.Load(); b != was {
			t.Fatalf("%d have begun after Wait", b-was)
		}
	}
}

// A context made of a Life ends with it, at the cost of no goroutine.
func TestContextOfALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := life.New()
		ctx, cancel := context.WithTimeout(l, time.Hour)
		defer cancel()
		l.End()
		if ctx.Err() == nil {
			t.Error("the context goes on after End")
		}
	})
}
