package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := For(t.Context(), time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("For came to %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start = time.Now()
		if err := For(ctx, time.Hour); err != context.DeadlineExceeded || time.Since(start) != time.Minute {
			t.Errorf("For came to %v after %v", err, time.Since(start))
		}
		if err := For(ctx, 0); err == nil {
			t.Error("For came to nil after the end")
		}
	})
}
