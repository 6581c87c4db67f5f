package etcdlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// The driver remembers the keys that it does not use again for as long as their session
// lives: so new claims join another.
func TestSessionClosesWhenKeysAreSpent(t *testing.T) {
	now := boottime.Now()
	s := newSession(time.Minute, now)
	for i := range maxSpent {
		if !s.open(now) {
			t.Fatalf("not open with %d spent keys", i)
		}
		s.spent[fmt.Sprint(i)] = true
	}
	if s.open(now) {
		t.Errorf("open with %d spent keys", maxSpent)
	}
}
