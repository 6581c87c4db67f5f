package zklock

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// The watches of a connection that has ended meanwhile let nothing through.
func TestRewatchedTooLate(t *testing.T) {
	t.Parallel()
	s := watching(t)
	first := s.greeted(s.timeout, 77, boottime.Now(), true)
	s.begin()
	second := s.greeted(s.timeout, 77, boottime.Now(), true)
	s.begin()
	s.rewatched(first)
	if s.conn.state != connecting {
		t.Errorf("state %v", s.conn.state)
	}
	s.rewatched(second)
	if s.conn.state != up {
		t.Errorf("state %v", s.conn.state)
	}
}
