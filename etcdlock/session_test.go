package etcdlock

import (
	"fmt"
	"testing"
	"time"
)

// The driver remembers the keys that it does not use again for as long as their session
// lives: so new claims join another.
func TestSessionClosesWhenKeysAreRetired(t *testing.T) {
	s := newSession(time.Minute)
	for i := range maxTombs {
		if !s.open() {
			t.Fatalf("not open with %d retired keys", i)
		}
		s.retired[fmt.Sprint(i)] = true
	}
	if s.open() {
		t.Errorf("open with %d retired keys", maxTombs)
	}
}
