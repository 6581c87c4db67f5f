package fence_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
)

func TestGuardRefusesSmallerTokens(t *testing.T) {
	var g fence.Guard
	for _, c := range []struct {
		token  uint64
		owner  string
		passes bool
	}{
		{10, "a", true}, {10, "a", true}, {10, "b", false}, {9, "a", false}, {11, "b", true}, {10, "a", false},
		{0, "b", false},
	} {
		wrote := false
		err := g.Do("stock", c.token, c.owner, func() error { wrote = true; return nil })
		if (err == nil) != c.passes || wrote != c.passes || err != nil && !errors.Is(err, fence.ErrStale) {
			t.Errorf("token %d of %s: wrote %v, %v", c.token, c.owner, wrote, err)
		}
	}
	if err := g.Do("other", 1, "c", func() error { return nil }); err != nil {
		t.Errorf("another resource: %v", err)
	}
}

// Writes and their checks are one: of racing writers the last to write has the largest
// token of all that wrote.
func TestGuardIsAtomicWithTheWrite(t *testing.T) {
	var g fence.Guard
	var wg sync.WaitGroup
	var last uint64
	for token := range uint64(200) {
		wg.Go(func() {
			g.Do("stock", token+1, "o", func() error {
				if token+1 < last {
					t.Errorf("wrote with %d after %d", token+1, last)
				}
				last = token + 1
				return nil
			})
		})
	}
	wg.Wait()
	if last != 200 {
		t.Errorf("last write had token %d", last)
	}
}
