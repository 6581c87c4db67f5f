package zklock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// What a session lasts counts from the last contact that the leader was told of.
func TestProofCountsFromWhatWasCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSession(t, 4*time.Second)
		start := boottime.Now()
		at := func(second float64) boottime.Instant { return start.Add(time.Duration(second * float64(time.Second))) }
		until := func(second float64) { time.Sleep(at(second).Sub(boottime.Now())) }
		lasts := func(second float64) {
			t.Helper()
			if got := s.proof().lasts; got != at(second) {
				t.Errorf("at %v: the session lasts until %v, want %v", boottime.Now().Sub(start), got.Sub(start), second)
			}
		}
		until(1)
		s.greeted(s.timeout, 77, at(0.5), false)
		s.prove(77, at(1))
		lasts(4.5)
		until(2)
		s.heard(77, at(1.5))
		s.heard(76, at(1.9)) // of another session
		s.prove(77, at(2.9)) // the leader is told at 3
		lasts(4.5)
		s.prove(77, at(3))
		lasts(5.5)
		s.prove(77, at(2.9)) // an answer that comes late takes nothing back
		lasts(5.5)
		s.prove(76, at(9))
		lasts(5.5)
		until(6)
		s.greeted(s.timeout, 77, at(5.8), false) // the leader has let it go on itself
		s.prove(77, at(6))
		lasts(9.8)
		s.greeted(s.timeout, 78, at(6), false)
		if got := s.proof().lasts; got != 0 {
			t.Errorf("a new session lasts until %v before the leader has answered", got.Sub(start))
		}
	})
}

// Many contacts leave few behind.
func TestContactsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSession(t, 3*time.Second)
		s.greeted(s.timeout, 77, boottime.Now(), false)
		for range 3000 {
			s.heard(77, boottime.Now())
			time.Sleep(time.Millisecond)
		}
		for range 300 {
			s.heard(77, boottime.Now())
			time.Sleep(s.timeout / 10)
		}
		if n := len(s.life.contacts); n > 2*contactsPerSession {
			t.Errorf("%d contacts are kept", n)
		}
	})
}
