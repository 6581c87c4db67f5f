// Package pause waits.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns ctx.Err() as soon as ctx has ended, even if d is over too.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
