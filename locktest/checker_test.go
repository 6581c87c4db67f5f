package locktest

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

func TestHistoryCheck(t *testing.T) {
	t.Parallel()
	start := time.Now()
	ex := func(owner string, token uint64, from, until int) Belief {
		at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
		return Belief{Resource: "r", Owner: owner, Token: token, From: at(from), Until: at(until)}
	}
	sh := func(owner string, token uint64, limit, from, until int) Belief {
		b := ex(owner, token, from, until)
		b.Mode, b.Limit = driver.Shared, limit
		return b
	}
	weighs := func(weight int, b Belief) Belief { b.Weight = weight; return b }
	waited := func(ms int, b Belief) Belief {
		b.Called = b.From.Add(-time.Duration(ms) * time.Millisecond)
		return b
	}
	other := func(b Belief) Belief { b.Resource = "other"; return b }
	for _, test := range []struct {
		name    string
		beliefs []Belief
		want    string // in the error; "": the history is good
	}{
		{"empty", nil, ""},
		{"one after the other", []Belief{ex("a", 1, 0, 10), ex("b", 2, 20, 30)}, ""},
		{"added out of order", []Belief{ex("b", 2, 20, 30), ex("a", 1, 0, 10)}, ""},
		{"touching", []Belief{ex("a", 1, 0, 10), ex("b", 2, 10, 30)}, ""},
		{"without tokens", []Belief{ex("a", 0, 0, 10), ex("b", 0, 20, 30)}, ""},
		{"two resources at once", []Belief{ex("a", 5, 0, 10), other(ex("b", 2, 5, 30))}, ""},
		{"ended before it began", []Belief{ex("a", 1, 5, 0), ex("b", 2, 6, 30)}, ""},
		{"knew of it after its end", []Belief{ex("b", 2, 6, 8), ex("a", 1, 20, 5)}, ""},
		{"sharers", []Belief{sh("a", 2, 0, 0, 10), sh("b", 1, 0, 5, 30), sh("c", 3, 0, 6, 8)}, ""},
		{"sharers at their limit", []Belief{sh("a", 1, 2, 0, 10), sh("b", 2, 2, 5, 30), sh("c", 3, 2, 10, 12)}, ""},
		{"weights at their limit", []Belief{weighs(3, sh("a", 1, 4, 0, 10)), sh("b", 2, 4, 5, 30), weighs(3, sh("c", 3, 4, 10, 12))}, ""},
		{"a sharer was granted before it knew", []Belief{sh("a", 7, 0, 0, 10), waited(15, sh("c", 6, 0, 20, 30))}, ""},

		{"overlap", []Belief{ex("a", 1, 0, 10), ex("b", 2, 9, 30)}, "two holders"},
		{"overlap, added out of order", []Belief{ex("b", 2, 9, 30), ex("a", 1, 0, 10)}, "two holders"},
		{"within another", []Belief{ex("a", 1, 0, 100), ex("b", 2, 9, 30)}, "two holders"},
		{"behind one within another", []Belief{sh("a", 1, 0, 0, 100), sh("b", 2, 0, 9, 30), ex("c", 3, 40, 50)}, "two holders"},
		{"same instant", []Belief{ex("a", 1, 0, 10), ex("b", 2, 0, 10)}, "two holders"},
		{"exclusive during shared", []Belief{sh("a", 1, 0, 0, 10), ex("b", 2, 9, 30)}, "two holders"},
		{"shared during exclusive", []Belief{ex("a", 1, 0, 10), sh("b", 2, 0, 9, 30)}, "two holders"},
		{"one sharer too many", []Belief{sh("a", 1, 2, 0, 10), sh("b", 2, 2, 5, 30), sh("c", 3, 2, 9, 12)}, "3 holders"},
		{"a weight too many", []Belief{weighs(3, sh("a", 1, 4, 0, 10)), weighs(2, sh("b", 2, 4, 5, 30))}, "2 holders at once use 5"},
		{"smallest limit", []Belief{sh("a", 1, 1, 0, 10), sh("b", 2, 5, 5, 30)}, "2 holders"},
		{"a limit beside none", []Belief{sh("a", 1, 0, 0, 10), sh("b", 2, 1, 5, 30)}, "2 holders"},
		{"token repeated", []Belief{ex("a", 7, 0, 10), ex("b", 7, 20, 30)}, "did not grow"},
		{"token fell", []Belief{ex("a", 7, 0, 10), ex("b", 6, 20, 30)}, "did not grow"},
		{"token fell below an older one", []Belief{ex("a", 7, 0, 10), ex("b", 8, 20, 30), ex("c", 7, 40, 50)}, "did not grow"},
		{"sharer's token fell", []Belief{sh("a", 7, 0, 0, 10), sh("b", 9, 0, 5, 50), sh("c", 6, 0, 20, 30)}, "did not grow"},
		{"sharer's token fell, whose wait was short", []Belief{sh("a", 7, 0, 0, 10), waited(5, sh("c", 6, 0, 20, 30))}, "did not grow"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var h History
			for _, b := range test.beliefs {
				h.Add(b)
			}
			switch err := h.Check(); {
			case test.want == "" && err != nil:
				t.Errorf("good history refused: %v", err)
			case test.want != "" && err == nil:
				t.Error("bad history accepted")
			case test.want != "" && !strings.Contains(err.Error(), test.want):
				t.Errorf("want %q in: %v", test.want, err)
			}
		})
	}
}

func TestHistoryCheckIsBounded(t *testing.T) {
	t.Parallel()
	var h History
	now := time.Now()
	for range 1000 {
		h.Add(Belief{Resource: "r", Owner: "an owner that is a secret", From: now, Until: now.Add(time.Second)})
	}
	err := h.Check()
	if err == nil {
		t.Fatal("1000 holders at once accepted")
	}
	if n := strings.Count(err.Error(), "\n") + 1; n > maxViolations {
		t.Errorf("%d violations listed, want at most %d", n, maxViolations)
	}
	if strings.Contains(err.Error(), "an owner that is a secret") {
		t.Error("the error shows a whole owner")
	}
}
