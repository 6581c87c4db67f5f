package storeurl_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// The error of a silent server names the time that it had, even if the caller gave it less.
func TestSilentNamesTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		brief, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errors.New("no answer within 2s"))
		defer cancel()
		plain, cancelPlain := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancelPlain()
		for _, c := range []struct {
			ctx  context.Context
			want string
		}{
			{t.Context(), "no answer within 5s: context deadline exceeded"},
			{brief, "no answer within 2s: context deadline exceeded"},
			{plain, "context deadline exceeded"},
		} {
			ctx, end := storeurl.Waiting(c.ctx)
			<-ctx.Done()
			err := storeurl.Silent(ctx, ctx.Err())
			end()
			if err.Error() != c.want || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want %s", err, c.want)
			}
		}
	})
}
