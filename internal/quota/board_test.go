//go:build unix

package quota

import (
	"path/filepath"
	"testing"
)

// The board counts workers beyond a limit, and forgets dead workers, wherever they died.
func TestBoardCounts(t *testing.T) {
	o := Order{Board: filepath.Join(t.TempDir(), "board"), Keys: 2, PerKey: 4, Limit: 2, Total: 3}
	mine, err := openBoard(o)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := openBoard(o) // like another process
	if err != nil {
		t.Fatal(err)
	}
	f := &Fleet{t: t, board: mine}
	want := func(want Count) {
		t.Helper()
		if got := f.Count(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	mine.enter(0)
	theirs.enter(2)
	want(Count{PeakKey: 2, PeakTotal: 2, AtWork: 2})
	mine.enter(4)
	want(Count{OverKey: 1, PeakKey: 3, PeakTotal: 3, AtWork: 3})
	theirs.enter(1)
	want(Count{OverKey: 1, OverTotal: 1, PeakKey: 3, PeakTotal: 4, AtWork: 4})
	mine.leave(0)
	want(Count{Done: 1, OverKey: 1, OverTotal: 1, PeakKey: 3, PeakTotal: 4, AtWork: 3})
	if !mine.reap(2) || mine.reap(2) || mine.reap(0) {
		t.Error("worker 2 was at work, and no longer; worker 0 was not")
	}
	theirs.cell(4).Store(leaving)
	if mine.reap(4) || !mine.reap(1) {
		t.Error("worker 4 was leaving, and worker 1 at work")
	}
	want(Count{Done: 1, OverKey: 1, OverTotal: 1, PeakKey: 3, PeakTotal: 4})
}
