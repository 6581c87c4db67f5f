package locktest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

var listCases = []Case{
	{Name: "ListIsSortedAndLiteral", Needs: NeedOperator, Alone: true, Run: listIsSortedAndLiteral},
	{Name: "ListHasPages", Needs: NeedOperator, Run: listHasPages},
	{Name: "ListKeepsToThePrefixAfterAnyCursor", Needs: NeedOperator, Run: listKeepsToThePrefixAfterAnyCursor},
	{Name: "ListGoesOnBehindWhatHasGone", Needs: NeedOperator, Run: listGoesOnBehindWhatHasGone},
	{Name: "ListMissesNobodyWhileOthersCome", Needs: NeedOperator, Run: listMissesNobodyWhileOthersCome},
}

// onePage is a limit that is large enough for all names of a case.
const onePage = 1000

// mostPages is more than the number of pages of any list in a case, including empty ones.
const mostPages = 10_000

// page reads one page and checks it.
func page(t testing.TB, d driver.Driver, prefix, after string, limit int) (names []string, next string) {
	t.Helper()
	states, next, err := operator(d).List(bounded(t), prefix, after, limit)
	if err != nil {
		t.Fatalf("List(%q) after %q: %v", prefix, after, err)
	}
	if len(states) > limit {
		t.Fatalf("List(%q): %d states on a page of %d", prefix, len(states), limit)
	}
	for _, st := range states {
		names = append(names, st.Resource)
		if len(st.Holders)+len(st.Waiters) == 0 {
			t.Errorf("List(%q) shows %q, which is free", prefix, st.Resource)
		}
		if !strings.HasPrefix(st.Resource, prefix) {
			t.Errorf("List(%q) shows %q", prefix, st.Resource)
		}
		for _, holder := range st.Holders {
			if of, ok := strings.CutPrefix(holder.Note, holds); ok && of != st.Resource {
				t.Errorf("List(%q) shows the holder of %q for %q", prefix, of, st.Resource)
			}
		}
	}
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) < len(names) {
		t.Errorf("List(%q): a page that is not sorted, or shows a name twice: %q", prefix, names)
	}
	return names, next
}

// rest reads the pages after a cursor, with the drivers in turn. It returns their names.
func rest(t testing.TB, drivers []driver.Driver, prefix, after string, limit int) (names []string) {
	t.Helper()
	for i := range mostPages {
		some, next := page(t, drivers[i%len(drivers)], prefix, after, limit)
		if names = append(names, some...); next == "" {
			slices.Sort(names)
			return slices.Compact(names)
		}
		after = next
	}
	t.Fatalf("List(%q) does not end: %d pages of %d", prefix, mostPages, limit)
	return nil
}

// holds precedes the name in the notes of those who hold several.
const holds = "holds "

// holdAll holds n names that begin with prefix. It returns them and their holders, sorted.
func holdAll(t testing.TB, d driver.Driver, prefix string, n int) (names []string, held []*contender) {
	for i := range n {
		req := request(fmt.Sprintf("%s%02d", prefix, i))
		req.Note = holds + req.Resource
		names, held = append(names, req.Resource), append(held, holding(t, d, req))
	}
	return names, held
}

// listIsSortedAndLiteral: a prefix is not a pattern, names are returned unchanged, and free
// resources are not listed.
func listIsSortedAndLiteral(t testing.TB, h Harness) {
	d := open(t, h)
	base := newName(t) + "/"
	list := func(prefix string) []string { return rest(t, []driver.Driver{d}, prefix, "", onePage) }
	var names []string
	for _, name := range trickyNames(base) {
		if !strings.HasPrefix(name, base) || len(name) > 500 {
			continue
		}
		contend(t, d, request(name)).granted("the resource is free")
		names = append(names, name)
	}
	expired := contend(t, d, lasting(request(base+"expired"), leastTTL(d.Features())))
	g := expired.granted("the resource is free")
	free := holding(t, d, request(base+"free"))
	free.released()
	time.Sleep(g.TTL)
	isSoonFree(t, d, expired.req.Resource)
	for _, prefix := range []string{"", "a", "A", "%", "_", "*", "a%", "a_", "a*", "a?", "a[", "a\\", "{", "é", "e\u0301", "a/", "a b", "path", "none such", "'", "a'"} {
		want := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, base+prefix) })
		slices.Sort(want)
		for _, limit := range []int{onePage, 7} {
			if got := rest(t, []driver.Driver{d}, base+prefix, "", limit); !slices.Equal(got, want) {
				t.Errorf("List(…%q) by %d = %q, want %q", prefix, limit, got, want)
			}
		}
	}
	if all := list(""); !slices.Contains(all, names[0]) {
		t.Errorf("List(\"\") does not show %q", names[0])
	}
}

// listHasPages: with any length of pages, the pages together show each name. Each page may be read
// by another process.
func listHasPages(t testing.TB, h Harness) {
	drivers := []driver.Driver{open(t, h), open(t, h)}
	prefix := newName(t) + "/"
	want, _ := holdAll(t, drivers[0], prefix, 12)
	for _, limit := range []int{1, 3, len(want), onePage} {
		if got := rest(t, drivers, prefix, "", limit); !slices.Equal(got, want) {
			t.Errorf("by %d: %q, want %q", limit, got, want)
		}
	}
	if got := rest(t, drivers, prefix+"none such", "", 3); len(got) > 0 {
		t.Errorf("of none: %q", got)
	}
}

// listKeepsToThePrefixAfterAnyCursor: a cursor of a list of other names is an error, or shows none
// of them, because callers may have no right to see them.
func listKeepsToThePrefixAfterAnyCursor(t testing.TB, h Harness) {
	d := open(t, h)
	base := newName(t)
	holdAll(t, d, base+"/other/", 3)
	holdAll(t, d, base+"/mine/", 2)
	for prefix, others := range map[string]string{base + "/mine/": base + "/other/", base + "/other/": base + "/mine/"} {
		for after := ""; ; {
			_, next := page(t, d, others, after, 1)
			if after = next; after == "" {
				break
			}
			states, _, _ := operator(d).List(bounded(t), prefix, after, onePage)
			for _, st := range states {
				if !strings.HasPrefix(st.Resource, prefix) {
					t.Errorf("List(%q) after a cursor of %q shows %q", prefix, others, st.Resource)
				}
			}
		}
	}
}

// listGoesOnBehindWhatHasGone: a cursor is a position, not a count. If names before it have gone,
// all others still follow.
func listGoesOnBehindWhatHasGone(t testing.TB, h Harness) {
	d := open(t, h)
	prefix := newName(t) + "/"
	want, held := holdAll(t, d, prefix, 12)
	var names []string
	next := ""
	for first := true; first || len(names) < 4 && next != ""; first = false {
		var some []string
		some, next = page(t, d, prefix, next, 4)
		names = append(names, some...)
	}
	for _, name := range names {
		i := slices.Index(want, name)
		if i < 0 {
			continue // it came twice
		}
		held[i].released()
		want, held = slices.Delete(want, i, i+1), slices.Delete(held, i, i+1)
	}
	if next == "" && len(want) > 0 {
		t.Fatalf("the pages end before %q", want)
	}
	if next == "" {
		return
	}
	if got := rest(t, []driver.Driver{d}, prefix, next, 4); !slices.Equal(got, want) {
		t.Errorf("behind what has gone: %q, want %q", got, want)
	}
}

// listMissesNobodyWhileOthersCome: a name that is held throughout is listed, while other names come
// and go.
func listMissesNobodyWhileOthersCome(t testing.TB, h Harness) {
	d, other := open(t, h), open(t, h)
	prefix := newName(t) + "/"
	held, _ := holdAll(t, d, prefix, 10)
	ended := make(chan struct{})
	var churn sync.WaitGroup
	defer churn.Wait()
	defer close(ended)
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			default:
			}
			c, err := other.Claim(request(fmt.Sprintf("%s%02d-%d", prefix, i%10, i%7)))
			if err != nil {
				t.Errorf("Claim: %v", err)
				return
			}
			_, _ = c.Try(bounded(t)) // any outcome is fine
			_ = c.Release(bounded(t), driver.End{})
		}
	})
	for range 5 {
		got := rest(t, []driver.Driver{d}, prefix, "", 2)
		for _, name := range held {
			if !slices.Contains(got, name) {
				t.Errorf("%q is not shown among %q", name, got)
			}
		}
	}
}
