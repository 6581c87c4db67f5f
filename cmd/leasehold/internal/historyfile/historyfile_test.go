package historyfile

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/serve"
)

func open(t *testing.T, path string, opts Options) *File {
	t.Helper()
	f, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// entries are some that were seen a second apart, the one before last now.
func entries(from, to, last int) (all []serve.HistoryEntry) {
	for i := from; i < to; i++ {
		e := serve.HistoryEntry{Seq: int64(i), Time: time.Now().Add(time.Duration(i-last) * time.Second), Kind: "granted", Name: fmt.Sprint("n/", i%10), Note: "note"}
		if i%100 == 0 {
			e.Kind = "evicted"
		}
		if i%1000 == 0 {
			e.Kind, e.Name = "gap", ""
		}
		all = append(all, e)
	}
	return all
}

func fill(t *testing.T, f *File, from, to int) {
	t.Helper()
	for last := to; from < to; from += 10_000 {
		if err := f.Append(t.Context(), time.Now(), entries(from, min(from+10_000, to), last)); err != nil {
			t.Fatal(err)
		}
	}
}

func count(t *testing.T, f *File) (n int) {
	t.Helper()
	if err := f.db.QueryRow("SELECT count(*) FROM entries").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// prune appends nothing, until nothing old is left to delete.
func prune(t *testing.T, f *File) {
	t.Helper()
	f.pruned = time.Time{}
	for again := true; again; again = f.from > 0 {
		if err := f.Append(t.Context(), time.Now(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// read reads all pages.
func read(t *testing.T, f *File, q serve.HistoryQuery) (all []serve.HistoryEntry) {
	t.Helper()
	for {
		page, next, err := f.Read(t.Context(), q)
		if err != nil || len(page) > q.Limit {
			t.Fatalf("%d entries, %v", len(page), err)
		}
		all = append(all, page...)
		if q.Before = next; next == 0 {
			return all
		}
	}
}

// Every entry that is asked for is on one page, and no other, the newest first.
func TestRead(t *testing.T) {
	t.Parallel()
	f := open(t, filepath.Join(t.TempDir(), "history"), Options{})
	const many = 2*window + 500
	fill(t, f, 1, many+1)
	everything := []string{""}
	newest := read(t, f, serve.HistoryQuery{Prefixes: everything, Limit: many})
	for what, c := range map[string]struct {
		q    serve.HistoryQuery
		want int
	}{
		"all":            {serve.HistoryQuery{Prefixes: everything}, many},
		"before":         {serve.HistoryQuery{Prefixes: everything, Before: 500}, 499},
		"a name":         {serve.HistoryQuery{Name: "n/7"}, many/10 + many/1000},
		"a name, rare":   {serve.HistoryQuery{Name: "n/0", Kinds: []string{"evicted"}}, many/100 - many/1000},
		"a prefix":       {serve.HistoryQuery{Prefixes: []string{"n/7", "n/8", "x"}}, 2*many/10 + many/1000},
		"no prefix":      {serve.HistoryQuery{}, many / 1000},
		"kinds":          {serve.HistoryQuery{Prefixes: everything, Kinds: []string{"evicted", "gap"}}, many / 100},
		"young":          {serve.HistoryQuery{Prefixes: everything, Since: newest[99].Time}, 100},
		"old":            {serve.HistoryQuery{Prefixes: everything, Until: newest[100].Time}, many - 100},
		"old, of a name": {serve.HistoryQuery{Name: "n/7", Until: newest[many-10].Time}, 1},
		"young, of none": {serve.HistoryQuery{Name: "x", Since: newest[99].Time}, 0},
	} {
		for _, limit := range []int{999, 100_000} {
			c.q.Limit = limit
			all := read(t, f, c.q)
			if len(all) != c.want {
				t.Errorf("%s, pages of %d: %d entries, want %d", what, limit, len(all), c.want)
			}
			for i := 1; i < len(all); i++ {
				if all[i].Seq >= all[i-1].Seq {
					t.Fatalf("%s: %d comes after %d", what, all[i].Seq, all[i-1].Seq)
				}
			}
		}
	}
}

// A reopened file has its entries, and the time when its writer was last alive.
func TestOpenAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a history%?#.db")
	f := open(t, path, Options{Store: "redis://a"})
	held := int64(5)
	one := serve.HistoryEntry{Seq: 7, Time: time.Now().UTC().Truncate(time.Millisecond), Kind: "released", Name: "n", Who: "short", WhoID: "h", Token: "1", Mode: "exclusive", Note: "note", Held: &held, Reason: "r", By: "b"}
	if err := f.Append(t.Context(), time.Now(), []serve.HistoryEntry{one}); err != nil {
		t.Fatal(err)
	}
	id := f.State().ID
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = open(t, path, Options{Store: "redis://a"})
	s := f.State()
	if s.ID != id || s.Last != 7 || !s.Began.Equal(one.Time) || time.Since(s.Alive) > time.Minute || s.Alive.Before(one.Time) {
		t.Errorf("%+v", s)
	}
	all, _, err := f.Read(t.Context(), serve.HistoryQuery{Name: "n", Limit: 10})
	if err != nil || len(all) != 1 || *all[0].Held != 5 {
		t.Fatalf("%+v, %v", all, err)
	}
	if all[0].Held = one.Held; all[0] != one {
		t.Errorf("%+v, want %+v", all[0], one)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// A file that is not this instance's is refused, and left as it is.
func TestRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	refused := func(path, want string, opts Options) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		f, err := Open(ctx, path, opts)
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	used := filepath.Join(dir, "used")
	f := open(t, used, Options{Store: "a"})
	refused(used, "in use by another instance", Options{Store: "a"})
	fill(t, f, 1, 10) // and its own instance goes on
	f.Close()
	refused(used, "the history of a, and not of b", Options{Store: "b"})
	open(t, used, Options{Store: "a"})

	other := filepath.Join(dir, "locks.db")
	db, err := sql.Open("sqlite", other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE locks (name TEXT)"); err != nil {
		t.Fatal(err)
	}
	db.Close()
	before, _ := os.ReadFile(other)
	refused(other, "another database", Options{})
	if after, _ := os.ReadFile(other); string(after) != string(before) {
		t.Error("another database was changed")
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(text, "no history file", Options{})

	newer := filepath.Join(dir, "newer")
	f = open(t, newer, Options{})
	if _, err := f.db.Exec(fmt.Sprintf("PRAGMA user_version = %d", version+1)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	refused(newer, "a newer leasehold", Options{})
	refused(filepath.Join(dir, "none", "history"), "no such file", Options{})
}

// An instance whose file another one has taken all the same writes no more.
func TestWritesNothingIntoATakenFile(t *testing.T) {
	t.Parallel()
	f := open(t, filepath.Join(t.TempDir(), "history"), Options{})
	fill(t, f, 1, 10)
	if _, err := f.db.Exec("UPDATE history SET owner = 'another'"); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(t.Context(), time.Now(), entries(10, 20, 20)); err == nil || !strings.Contains(err.Error(), "another instance has taken it") {
		t.Errorf("%v", err)
	}
	if n := count(t, f); n != 9 {
		t.Errorf("%d entries", n)
	}
}

// The oldest entries go by age and by size, and the history says where it begins then.
func TestBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := open(t, filepath.Join(t.TempDir(), "history"), Options{Keep: time.Hour})
		fill(t, f, 1, 7201) // one a second
		time.Sleep(apart)
		prune(t, f)
		if n := count(t, f); n != 3600 {
			t.Errorf("%d entries are of the hour before the first look", n)
		}
		if began := f.State().Began; time.Since(began) != 2*time.Hour {
			t.Errorf("it begins %v ago", time.Since(began))
		}
	})

	path := filepath.Join(t.TempDir(), "history")
	f := open(t, path, Options{Bytes: 1 << 20})
	for i := range 5 {
		fill(t, f, 1+i*10_000, 1+(i+1)*10_000)
		f.pruned = time.Time{}
	}
	fill(t, f, 50_001, 50_002)
	size, err := f.size(t.Context())
	if err != nil || size > 1<<20 {
		t.Errorf("%d bytes are in use, %v", size, err)
	}
	all := read(t, f, serve.HistoryQuery{Prefixes: []string{""}, Limit: 1000})
	if all[0].Seq != 50_001 || len(all) < 1000 {
		t.Errorf("%d entries, the newest %d", len(all), all[0].Seq)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 8<<20 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
}

// A write that fails leaves nothing, and can be made again.
func TestAppendAgain(t *testing.T) {
	t.Parallel()
	f := open(t, filepath.Join(t.TempDir(), "history"), Options{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Append(gone, time.Now(), entries(1, 10, 10)); err == nil {
		t.Fatal("written by a call that had ended")
	}
	fill(t, f, 1, 10)
	fill(t, f, 1, 10) // its answer was lost
	if n := count(t, f); n != 9 {
		t.Errorf("%d entries", n)
	}
}

// Entries of a clock that was ahead neither stay for ever nor keep others.
func TestPrunesWhatAWrongClockLeft(t *testing.T) {
	for what, opts := range map[string]Options{"too large": {Store: "s", Bytes: 1 << 20}, "too old": {Store: "s", Keep: time.Hour}} {
		path, n := filepath.Join(t.TempDir(), "h"), 0
		add := func(t *testing.T, f *File, at time.Time, count int) {
			f.pruned = time.Now()
			var all []serve.HistoryEntry
			for range count {
				n++
				all = append(all, serve.HistoryEntry{Seq: int64(n), Time: at, Kind: "granted", Name: "n", Note: strings.Repeat("x", 300)})
			}
			if err := f.Append(t.Context(), time.Now(), all); err != nil {
				t.Fatal(err)
			}
		}
		f := open(t, path, opts)
		prune(t, f) // a look years ahead of the clock below
		f.Close()
		synctest.Test(t, func(t *testing.T) {
			f := open(t, path, opts)
			add(t, f, time.Now().Add(48*time.Hour), 3000)
			add(t, f, time.Now().Add(-2*time.Hour), 3000)
			add(t, f, time.Now().Add(3*time.Hour), 10) // as a clock that is corrected a little leaves them
			stays := func(want int) {
				t.Helper()
				size, err := f.size(t.Context())
				if left := count(t, f); err != nil || opts.Keep > 0 && left != want || opts.Bytes > 0 && (size > opts.Bytes || left < 10) {
					t.Errorf("%s: %d entries stay in %d bytes, want %d, %v", what, left, size, want, err)
				}
			}
			prune(t, f)
			time.Sleep(apart)
			prune(t, f)
			stays(3010)
			time.Sleep(50 * time.Hour)
			prune(t, f)
			time.Sleep(apart)
			prune(t, f)
			stays(0)
		})
	}
}

// An instance that starts with its clock behind keeps what was written before: a machine without a
// battery gets the time from its network later.
func TestClockThatIsBehindDeletesNothing(t *testing.T) {
	for _, unseen := range []time.Duration{0, 3 * apart} { // for how long the store was down at the end
		path, opts := filepath.Join(t.TempDir(), "history"), Options{Keep: time.Hour}
		f := open(t, path, opts)
		if err := f.Append(t.Context(), time.Now().Add(-unseen), entries(1, 11, 11)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		synctest.Test(t, func(t *testing.T) { // its clock is years behind
			f := open(t, path, opts)
			for range 2 {
				if err := f.Append(t.Context(), time.Now(), nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * pruneEvery)
			}
			if n := count(t, f); n != 10 {
				t.Errorf("%d entries of 10 are left, unseen for %v", n, unseen)
			}
		})
		f = open(t, path, opts)
		if err := f.Append(t.Context(), time.Now(), nil); err != nil || count(t, f) != 10 {
			t.Errorf("%d entries of 10 are left with the right clock, unseen for %v, %v", count(t, f), unseen, err)
		}
		f.Close()
	}
}

// An instance whose clock is set back keeps what it has written before, and so does the next one.
func TestClockThatIsSetBackDeletesNothing(t *testing.T) {
	path, opts := filepath.Join(t.TempDir(), "history"), Options{Keep: 24 * time.Hour}
	f := open(t, path, opts)
	fill(t, f, 1, 11)
	left := func(t *testing.T, f *File) {
		t.Helper()
		if prune(t, f); count(t, f) != 10 {
			t.Errorf("%d entries of 10 are left", count(t, f))
		}
	}
	synctest.Test(t, func(t *testing.T) { // its clock is years behind
		for range 3 {
			for range 2 {
				left(t, f)
				time.Sleep(2 * apart)
			}
			f.Close()
			f = open(t, path, opts)
		}
	})
	f = open(t, path, opts)
	left(t, f)
}

// An instance that starts with its clock ahead keeps what was written before, and so does the next
// one, whether the clock is right between them or not. A clock that stays so is right after all.
func TestClockThatStartsAheadDeletesNothing(t *testing.T) {
	path, opts := filepath.Join(t.TempDir(), "history"), Options{Keep: 24 * time.Hour}
	from := 1
	right := func(t *testing.T) { // its clock is years behind the test's
		f := open(t, path, opts)
		fill(t, f, from, from+10)
		from += 10
	}
	synctest.Test(t, right)
	for _, instance := range []string{"first", "next", "last"} {
		f := open(t, path, opts)
		if prune(t, f); count(t, f) != from-1 {
			t.Errorf("the %s one leaves %d entries of %d at the start", instance, count(t, f), from-1)
		}
		f.Close()
		if instance == "next" {
			synctest.Test(t, right)
		}
	}
	f := open(t, path, opts)
	if _, err := f.db.Exec("UPDATE looks SET at = at - ?", apart.Milliseconds()); err != nil {
		t.Fatal(err)
	}
	if prune(t, f); count(t, f) != 0 {
		t.Errorf("%d entries are left of what is years old", count(t, f))
	}
}

// An instance whose clock once was ahead keeps the entries when the clock jumps ahead again.
func TestClockThatJumpsDeletesNothing(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "history"), Options{Keep: 24 * time.Hour})
	from := 1
	for range 2 {
		fill(t, f, from, from+10)
		if prune(t, f); count(t, f) != from+9 {
			t.Fatalf("%d entries of %d are left when the clock is ahead", count(t, f), from+9)
		}
		synctest.Test(t, func(t *testing.T) { // its clock is years behind
			fill(t, f, from+10, from+20)
			for range 3 {
				if prune(t, f); count(t, f) != from+19 {
					t.Fatalf("%d entries of %d are left when the clock is right", count(t, f), from+19)
				}
				time.Sleep(2 * apart)
			}
		})
		from += 20
	}
}

// A clock that is behind does not make entries old: they are kept as long as those before them.
func TestKeepsWhatAClockThatIsBehindWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, filepath.Join(t.TempDir(), "history"), Options{Keep: 24 * time.Hour})
		behind := entries(11, 21, 21)
		for i := range behind {
			behind[i].Time = behind[i].Time.AddDate(-1, 0, 0)
		}
		fill(t, f, 1, 11)
		if err := f.Append(t.Context(), time.Now(), behind); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if prune(t, f); count(t, f) != 20 {
				t.Errorf("%d entries of 20 are left", count(t, f))
			}
			time.Sleep(2 * apart)
		}
		time.Sleep(24 * time.Hour)
		prune(t, f)
		time.Sleep(apart)
		if prune(t, f); count(t, f) != 0 {
			t.Errorf("%d entries are left of what is a day old", count(t, f))
		}
	})
}

// Entries of a clock that was ahead, or that stays behind, keep none of those behind them longer,
// and are not kept longer themselves.
func TestPrunesBehindAWrongClock(t *testing.T) {
	for what, wrong := range map[string]struct {
		by   time.Duration
		ends int // hours that an instance lives
	}{"was ahead": {12 * time.Hour, 100}, "was ahead, and instances end": {12 * time.Hour, 9}, "was behind": {-12 * time.Hour, 100}, "was far ahead": {1000 * time.Hour, 100}} {
		path, opts := filepath.Join(t.TempDir(), "history"), Options{Keep: 24 * time.Hour}
		synctest.Test(t, func(t *testing.T) {
			f := open(t, path, opts)
			fill(t, f, 1, 11)
			off := entries(11, 21, 21)
			for i := range off {
				off[i].Time = off[i].Time.Add(wrong.by)
			}
			if err := f.Append(t.Context(), time.Now(), off); err != nil {
				t.Fatal(err)
			}
			fill(t, f, 21, 31)
			for hour := range 32 {
				if prune(t, f); hour <= 24 && count(t, f) != 30 {
					t.Fatalf("%s: %d entries of 30 are left after %d hours", what, count(t, f), hour)
				}
				time.Sleep(apart)
				if hour%wrong.ends == wrong.ends-1 {
					f.Close()
					f = open(t, path, opts)
				}
			}
			if n := count(t, f); n != 0 {
				t.Errorf("%s: %d entries of 30 are left", what, n)
			}
			var marks int
			if err := f.db.QueryRow("SELECT count(*) FROM looks").Scan(&marks); err != nil || marks > 26 {
				t.Errorf("%d looks are remembered, %v", marks, err)
			}
		})
	}
}

// An instance to which little happens deletes what has become old at once. A busy one deletes it in
// parts, so that entries do not wait.
func TestPrunesMoreWhileLittleHappens(t *testing.T) {
	for what, c := range map[string]struct{ written, left int }{"few": {many - 1, 3600}, "many": {many, 20_000 - pruned}} {
		synctest.Test(t, func(t *testing.T) {
			f := open(t, filepath.Join(t.TempDir(), "history"), Options{Keep: time.Hour})
			fill(t, f, 1, 20_001)
			time.Sleep(apart)
			if err := f.Append(t.Context(), time.Now(), entries(20_001, 20_001+c.written, 20_001)); err != nil {
				t.Fatal(err)
			}
			if n := count(t, f); n != c.left+c.written {
				t.Errorf("%s: %d entries of %d are left", what, n-c.written, c.left)
			}
			if prune(t, f); count(t, f) != 3600+c.written {
				t.Errorf("%s: %d entries are left in the end", what, count(t, f)-c.written)
			}
		})
	}
}

// A history does not begin in the future, where a wrong clock has put its oldest entry.
func TestBeginsInThePast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	synctest.Test(t, func(t *testing.T) {
		f := open(t, path, Options{})
		ahead := entries(1, 2, 2)
		ahead[0].Time = ahead[0].Time.Add(time.Hour)
		right := entries(2, 12, 12)
		if err := f.Append(t.Context(), time.Now(), append(ahead, right...)); err != nil {
			t.Fatal(err)
		}
		prune(t, f)
		for _, when := range []string{"at once", "when it is opened again"} {
			if began := f.State().Began; !began.Equal(right[0].Time) {
				t.Errorf("%s: it begins %v after the first entry of a right clock", when, began.Sub(right[0].Time))
			}
			f.Close()
			f = open(t, path, Options{})
		}
	})
}

// Instances that live for less than the time between two looks prune too.
func TestShortInstancesPrune(t *testing.T) {
	path, opts := filepath.Join(t.TempDir(), "history"), Options{Keep: time.Hour}
	synctest.Test(t, func(t *testing.T) {
		f := open(t, path, opts)
		fill(t, f, 1, 11)
		f.Close()
		time.Sleep(2 * apart)
		for range 3 {
			f := open(t, path, opts)
			for range 40 {
				prune(t, f)
				time.Sleep(time.Minute)
			}
			f.Close()
		}
		f = open(t, path, opts)
		if n := count(t, f); n != 0 {
			t.Errorf("%d entries of 10 are left", n)
		}
	})
}
