package zklock

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a session lasts counts from the last contact that the leader was told of.
func TestProofCountsFromWhatWasCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, false)
		start := time.Now()
		at := func(second float64) time.Time { return start.Add(time.Duration(second * float64(time.Second))) }
		until := func(second float64) { time.Sleep(time.Until(at(second))) }
		lasts := func(second float64) {
			t.Helper()
			if got := l.proof().lasts; !got.Equal(at(second)) {
				t.Errorf("at %v: the session lasts until %v, want %v", time.Since(start), got.Sub(start), second)
			}
		}
		until(1)
		l.timeout = 4 * time.Second
		l.greeted(l.timeout, 77, at(0.5), false)
		l.prove(77, at(1))
		lasts(4.5)
		until(2)
		l.heardAt(77, at(1.5))
		l.heardAt(76, at(1.9)) // of another session
		l.prove(77, at(2.9))   // the leader is told at 3
		lasts(4.5)
		l.prove(77, at(3))
		lasts(5.5)
		l.prove(77, at(2.9)) // an answer that comes late takes nothing back
		lasts(5.5)
		l.prove(76, at(9))
		lasts(5.5)
		until(6)
		l.greeted(l.timeout, 77, at(5.8), false) // the leader has let it go on itself
		l.prove(77, at(6))
		lasts(9.8)
		l.greeted(l.timeout, 78, at(6), false)
		if got := l.proof().lasts; !got.IsZero() {
			t.Errorf("a new session lasts until %v before the leader has answered", got.Sub(start))
		}
	})
}

// Many contacts leave few behind.
func TestContactsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, false)
		l.greeted(l.timeout, 77, time.Now(), false)
		for range 3000 {
			l.heardAt(77, time.Now())
			time.Sleep(time.Millisecond)
		}
		for range 300 {
			l.heardAt(77, time.Now())
			time.Sleep(l.timeout / 10)
		}
		if n := len(l.contacts); n > 2*contactsPerSession {
			t.Errorf("%d contacts are kept", n)
		}
	})
}
