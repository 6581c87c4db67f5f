package onecall_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/onecall"
)

// Concurrent calls run one after another.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, each = 10, time.Second
		g, running := onecall.New(), 0
		start := time.Now()
		for range callers {
			go func() {
				if err := g.Begin(t.Context()); err != nil {
					t.Error(err)
				}
				defer g.End()
				if running++; running > 1 {
					t.Errorf("%d calls at once", running)
				}
				time.Sleep(each)
				running--
			}()
		}
		synctest.Wait()
		if g.TryBegin() {
			t.Error("a call is begun beside another")
		}
		if err := g.Begin(context.Background()); err != nil { // the last; nobody who waited is overtaken
			t.Error(err)
		}
		if took := time.Since(start); took != callers*each {
			t.Errorf("%d calls took %v", callers, took)
		}
		g.End()
		if !g.TryBegin() {
			t.Error("no call is begun though none is under way")
		}
	})
}

// A caller that stops waiting has not begun a call, and the next one is let through.
func TestBeginEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := onecall.New()
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if !g.TryBegin() {
			t.Fatal("the first call has to wait")
		}
		if err := g.Begin(ended); err != context.DeadlineExceeded {
			t.Errorf("waited for a call that hangs: %v", err)
		}
		g.End()
		if err := g.Begin(ended); err != nil {
			t.Errorf("a call that needs no waiting: %v", err)
		}
		g.End()
	})
}
