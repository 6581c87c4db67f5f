package memcachelock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A process leaves a name that others want when it has had it for a turn, by one long hold or by
// many with no other's in between, and no earlier.
func TestLeavesAfterATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		holds := func(name string, d time.Duration, wanted bool) bool {
			since := time.Now()
			time.Sleep(d)
			turns.ended(name, since, wanted)
			return turns.away(name) > 0
		}
		for range 100 {
			if holds("nobody else wants it", turn, false) {
				t.Fatal("it leaves a name for nobody")
			}
		}
		n := 1
		for ; !holds("short holds", turn/10, true); n++ {
		}
		if n != 10 {
			t.Errorf("it leaves after %d tenths of a turn", n)
		}
		if got := turns.away("short holds"); got != stayAway || turns.away("other") > 0 {
			t.Errorf("away for %v, want %v, and from no other", got, stayAway)
		}
		time.Sleep(stayAway + 1)
		if turns.away("short holds") > 0 || holds("short holds", turn/10, true) {
			t.Error("its next turn is none")
		}
		if !holds("a long hold", turn, true) {
			t.Error("it stays after a long hold")
		}
		for range 100 {
			if holds("others have it in between", turn/2, true) {
				t.Fatal("it leaves although others get the name")
			}
			turns.refused("others have it in between")
		}
	})
}

// Programs lock different names for years.
func TestTurnsForgetNames(t *testing.T) {
	turns := newTurns()
	for i := range 10 * maxStreaks {
		turns.ended(fmt.Sprint(i), time.Now(), true)
	}
	if n := len(turns.names); n > maxStreaks {
		t.Errorf("%d names are remembered", n)
	}
}
