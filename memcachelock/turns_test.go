package memcachelock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurnsEndAfterAStreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		hold := func(name string, d time.Duration) bool {
			turns.granted(name)
			time.Sleep(d)
			return turns.released(name)
		}
		looks := 0
		for start := time.Now(); time.Since(start) < 10*turn; time.Sleep(time.Millisecond) {
			if hold("short holds", 9*time.Millisecond) {
				looks++
			}
		}
		if looks < 8 || looks > 10 {
			t.Errorf("%d looks in ten turns", looks)
		}
		if !hold("a long hold", turn) {
			t.Error("no look after a long hold")
		}
		for range 10 {
			if hold("holds far between", turn/2) {
				t.Error("one short hold is no streak")
			}
			time.Sleep(between + 1)
		}
	})
}

func TestStaysAwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		if turns.away("n") > 0 {
			t.Error("away from the first")
		}
		turns.released("n")
		turns.leave("n")
		if got := turns.away("n"); got != stayAway || turns.away("other") > 0 {
			t.Errorf("away for %v, want %v, and from no other", got, stayAway)
		}
		time.Sleep(stayAway)
		if turns.away("n") > 0 {
			t.Error("away for ever")
		}
	})
}

// Programs lock different names for years.
func TestTurnsForgetNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		for i := range 10_000 {
			turns.granted(fmt.Sprint(i))
			turns.released(fmt.Sprint(i))
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(turns.names); n > 2*fewTurns {
			t.Errorf("%d names are remembered", n)
		}
	})
}
