package fence_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
)

func TestGuardRefusesSmallerTokens(t *testing.T) {
	var g fence.Memory
	for _, c := range []struct {
		token  uint64
		owner  string
		passes bool
	}{
		{10, "a", true}, {10, "a", true}, {10, "b", false}, {9, "a", false}, {11, "b", true}, {10, "a", false},
		{0, "b", false},
	} {
		wrote := false
		err := g.Do(fence.LeaseOf("stock", c.token, c.owner), func() error { wrote = true; return nil })
		if (err == nil) != c.passes || wrote != c.passes || err != nil && !errors.Is(err, fence.ErrStale) {
			t.Errorf("token %d of %s: wrote %v, %v", c.token, c.owner, wrote, err)
		}
	}
	if err := g.Do(fence.LeaseOf("other", 1, "c"), func() error { return nil }); err != nil {
		t.Errorf("another resource: %v", err)
	}
}

// Writes and their checks are one: of racing writers the last to write has the largest
// token of all that wrote.
func TestGuardIsAtomicWithTheWrite(t *testing.T) {
	var g fence.Memory
	var wg sync.WaitGroup
	var last uint64
	for token := range uint64(200) {
		wg.Go(func() {
			g.Do(fence.LeaseOf("stock", token+1, "o"), func() error {
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

// The tokens of an engine that comes later may be smaller; those of the former one are void
// from its first lease on.
func TestEpochs(t *testing.T) {
	var g fence.Memory
	old, small := fence.LeaseOf("stock", 1<<60, "a"), fence.LeaseOf("stock", 8192, "b")
	for i, c := range []struct {
		lease  fence.Lease
		passes bool
	}{
		{old, true}, {small, false}, {old, true}, {fence.InEpoch(small, 1), true}, {fence.InEpoch(small, 1), true}, {old, false},
		{small, false}, {fence.LeaseOf("stock", 1<<62, "late"), false}, {fence.InEpoch(fence.LeaseOf("stock", 8191, "b"), 1), false},
		{fence.InEpoch(fence.LeaseOf("stock", 8192, "c"), 1), false}, {fence.InEpoch(fence.LeaseOf("stock", 1024, "c"), 2), true},
	} {
		if err := g.Do(c.lease, func() error { return nil }); (err == nil) != c.passes || err != nil && !errors.Is(err, fence.ErrStale) {
			t.Errorf("%d: token %d: %v", i, c.lease.Token(), err)
		}
	}
}

// Where fmt cannot call methods, it does not find the owner either.
func TestLeaseInAFieldHidesItsOwner(t *testing.T) {
	l := fence.LeaseOf("stock", 10, "canary")
	if l.Owner() != "canary" || l != fence.LeaseOf("stock", 10, "canary") {
		t.Errorf("%q", l.Owner())
	}
	for _, v := range []any{l, struct{ l fence.Lease }{l}, &struct{ l fence.Lease }{l}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "canary") {
				t.Errorf("%s: %s", verb, text)
			}
		}
	}
}
