package zklock

import (
	"testing"
	"time"
)

// The watches of a connection that has ended meanwhile let nothing through.
func TestRewatchedTooLate(t *testing.T) {
	t.Parallel()
	l := newLink(t, true)
	first := l.greeted(l.timeout, 77, time.Now(), true)
	l.begin()
	second := l.greeted(l.timeout, 77, time.Now(), true)
	l.begin()
	l.rewatched(first)
	if l.state != connecting {
		t.Errorf("state %v", l.state)
	}
	l.rewatched(second)
	if l.state != up {
		t.Errorf("state %v", l.state)
	}
}
