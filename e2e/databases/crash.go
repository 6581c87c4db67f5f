package databases

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// KeepsWhatItGranted kills the server right after a grant and starts it again. While the holder
// believes that it holds, the server must know of the lease. Each call of open represents another
// process.
func KeepsWhatItGranted(t *testing.T, open func() Store, restart func()) {
	t.Helper()
	mine, other := Locker(t, open(), leasehold.Options{}), Locker(t, open(), leasehold.Options{})
	var last uint64
	for round := range 3 {
		name := fmt.Sprint("over a crash ", round)
		for range 2 { // the second time there is a row, whose token must be kept
			lease, err := mine.Acquire(t.Context(), name, leasehold.TTL(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			last = lease.Token()
			restart()
			until(t, "an answer to another", 4*margin, func() bool {
				_, err = other.TryAcquire(t.Context(), name)
				return err == nil || errors.Is(err, leasehold.ErrBusy)
			})
			if err == nil {
				t.Fatalf("round %d: a second holder: the server forgot what it had granted", round)
			}
			until(t, "the release", 4*margin, func() bool {
				err = lease.Release(t.Context())
				return err == nil || errors.Is(err, leasehold.ErrLost)
			})
			if err != nil {
				t.Errorf("round %d: Release: %v", round, err)
			}
		}
		next, err := other.Acquire(t.Context(), name, leasehold.Wait(4*margin))
		if err != nil {
			t.Fatal(err)
		}
		if next.Token() <= last {
			t.Errorf("token %d after %d", next.Token(), last)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
