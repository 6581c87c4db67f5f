package etcdlock

import (
	"fmt"
	"testing"
	"time"
)

// The driver remembers the keys that it does not use again for as long as their session
// lives: so new claims join another.
func TestSessionClosesWhenKeysAreSpent(t *testing.T) {
	s := newSession(time.Minute)
	for i := range maxTombstones {
		if !s.open() {
			t.Fatalf("not open with %d spent keys", i)
		}
		s.spent[fmt.Sprint(i)] = true
	}
	if s.open() {
		t.Errorf("open with %d spent keys", maxTombstones)
	}
}
