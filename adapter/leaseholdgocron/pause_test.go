package leaseholdgocron

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// After a pause beyond the deadline, its timer has not run yet. A task sees all the same that its
// lease is over, or is not begun.
func TestAPauseBeyondTheDeadlineIsSeenAtOnce(t *testing.T) {
	type task func(ctx context.Context) error
	for by, wrap := range map[string]func(*Elector, *Locker, task) task{
		"Locker":  func(_ *Elector, l *Locker, fn task) task { return l.Task("job", fn) },
		"Elector": func(e *Elector, _ *Locker, fn task) task { return e.Task(fn) },
	} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, locks, _ := elected(t)
				defer locks.Close()
				defer e.Close() // whatever becomes of the next term
				l := NewLocker(locks)
				lock, err := l.Lock(t.Context(), "job")
				if err != nil {
					t.Fatal(err)
				}
				defer lock.Unlock(t.Context())
				err = wrap(e, l, func(ctx context.Context) error {
					boottime.Machine().Sleep(time.Hour)
					if ctx.Err() == nil || !errors.Is(context.Cause(ctx), leasehold.ErrLost) {
						t.Errorf("the task's context ends with %v, want ErrLost", context.Cause(ctx))
					}
					return nil
				})(t.Context())
				if !errors.Is(err, leasehold.ErrLost) {
					t.Errorf("the task: %v, want ErrLost", err)
				}
			})
		})
	}
	t.Run("a term that is over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, locks, _ := elected(t)
			defer locks.Close()
			defer e.Close()
			boottime.Machine().Sleep(time.Hour)
			err := e.Task(func(context.Context) error { t.Error("it ran"); return nil })(t.Context())
			if !errors.Is(err, ErrNoLease) {
				t.Errorf("%v, want ErrNoLease", err)
			}
		})
	})
}
