package main

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/spf13/pflag"
)

// fleetView is top with a few locks.
func fleetView(now time.Time) *topView {
	v := &topView{app: &app{}, store: "sqlite:/a/store", keys: true, since: now}
	h := func(owner, note string, held time.Duration) leasehold.Holder {
		return leasehold.Holder{Owner: driver.OwnerOf(owner), Note: note, Held: held, Left: time.Minute - held, Token: 1024}
	}
	v.take(leasehold.Page{States: []leasehold.State{
		{Resource: "a", Holders: []leasehold.Holder{h("AAAAAAAA-secret", "first", 3*time.Second)}},
		{Resource: "b", Holders: []leasehold.Holder{h("BBBBBBBB-secret", "second", 5*time.Second), h("CCCCCCCC-secret", "third", 4*time.Second)}, Waiters: []leasehold.Waiter{{Note: "patient"}}},
		{Resource: "c", Holders: []leasehold.Holder{h("", "done", time.Second)}},
		{Resource: "d", Waiters: []leasehold.Waiter{{Note: "waits"}}},
	}}, nil, now)
	return v
}

// text is what a frame has on a screen, and which line is reversed.
func (v *topView) text(t *testing.T, now time.Time, width, height int) (text, selected string) {
	t.Helper()
	frame := string(v.frame(now, width, height))
	if !strings.HasPrefix(frame, cursorOff+screenHome) {
		t.Errorf("a frame begins with %.20q", frame)
	}
	frame = strings.TrimSuffix(strings.TrimPrefix(frame, cursorOff+screenHome), cursorOn)
	lines := strings.Split(frame, lineEnd)
	if len(lines) != height {
		t.Errorf("%d lines of %d", len(lines), height)
	}
	for i, line := range lines {
		line = strings.TrimPrefix(line, lineRest)
		if strings.HasPrefix(line, reverseText) {
			selected += strings.Fields(strings.TrimPrefix(line, reverseText))[0]
		}
		for _, style := range []string{boldText, reverseText, plainText} {
			line = strings.ReplaceAll(line, style, "")
		}
		if strings.ContainsAny(line, "\x1b\r\n") || cells(line) > width {
			t.Errorf("line %d of a screen of %d: %q", i, width, line)
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n"), selected
}

func TestTopSelectsByKeys(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := fleetView(now)
	for _, step := range []struct {
		key, row, owner string
	}{
		{"x", "a", "AAAAAAAA"}, {keyDown, "b", "BBBBBBBB"}, {"j", "b", "CCCCCCCC"}, {keyDown, "c", ""}, {keyDown, "d", ""}, {keyDown, "d", ""}, {keyUp, "c", ""},
		{keyHome, "a", "AAAAAAAA"}, {"k", "a", "AAAAAAAA"}, {keyEnd, "d", ""}, {keyPageUp, "a", "AAAAAAAA"}, {keyPageDown, "d", ""},
	} {
		v.press(step.key)
		_, selected := v.text(t, now, 80, 24)
		if selected != step.row || v.chosen != (topRow{step.row, step.owner}) {
			t.Errorf("%s selects %q, %+v; want %+v", step.key, selected, v.chosen, step)
		}
	}
	// What is selected stays so when others come and go, and what is gone leaves its place.
	v.press(keyHome)
	v.press(keyDown)
	v.text(t, now, 80, 24)
	v.states = v.states[1:]
	if _, selected := v.text(t, now, 80, 24); selected != "b" || v.chosen.owner != "BBBBBBBB" {
		t.Errorf("%+v is selected", v.chosen)
	}
	v.states = v.states[1:]
	if _, selected := v.text(t, now, 80, 24); selected != "c" {
		t.Errorf("%+v is selected", v.chosen)
	}
	v.states = nil
	for _, key := range []string{keyUp, keyDown, keyEnter, "e", "s"} {
		v.press(key)
		if text, _ := v.text(t, now, 80, 24); !strings.Contains(text, "no lock is held") {
			t.Errorf("%s in an empty list:\n%s", key, text)
		}
	}
}

// A job that has finished keeps its name and holds nothing.
func TestTopCountsHoldersWithOwners(t *testing.T) {
	t.Parallel()
	now := time.Now()
	if head := fleetView(now).head(now); !strings.HasPrefix(head, "3 held, 2 waiting") {
		t.Error(head)
	}
}

func TestTopSortsAndFilters(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := fleetView(now)
	names := func() (all string) {
		_, rows := v.lines()
		for _, r := range rows {
			all += r.name
		}
		return all
	}
	for _, want := range []struct{ by, names string }{{"name", "abbcd"}, {"held", "bbacd"}, {"left", "bbacd"}, {"waiting", "bbdac"}, {"host", "abbcd"}, {"name", "abbcd"}} {
		v.press("s")
		if text, _ := v.text(t, now, 80, 24); names() != want.names || !strings.Contains(text, "by "+want.by) {
			t.Errorf("by %s: %s\n%s", want.by, names(), text)
		}
	}
	for _, typed := range []string{"/", "T", "h", "x", keyBackspace, "i"} {
		v.press(typed)
	}
	if text, _ := v.text(t, now, 80, 24); names() != "bb" || !strings.Contains(text, "lines with: Thi") {
		t.Errorf("filtered: %s\n%s", names(), text)
	}
	v.press(keyEnter)
	if text, _ := v.text(t, now, 80, 24); names() != "bb" || !strings.Contains(text, `only lines with "Thi"`) {
		t.Errorf("filtered: %s\n%s", names(), text)
	}
	v.press(keyEscape)
	if names() != "abbcd" {
		t.Errorf("all: %s", names())
	}
	for _, typed := range []string{"/", "q", keyClear, "z", "z"} {
		v.press(typed)
	}
	if text, _ := v.text(t, now, 80, 24); v.quits || !strings.Contains(text, "no line has it") {
		t.Errorf("nothing matches:\n%s", text)
	}
	if v.press(keyEscape); names() != "abbcd" || v.mode != topList {
		t.Errorf("all: %s", names())
	}
}

func TestTopShowsALock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := fleetView(now)
	v.press(keyDown)
	v.press(keyEnter)
	if text, _ := v.text(t, now, 80, 24); !strings.Contains(text, "b is held") || !strings.Contains(text, "patient") || strings.Contains(text, "secret") {
		t.Errorf("%s", text)
	}
	v.text(t, now, 80, 8) // scrolls
	for range 20 {
		v.press(keyDown)
	}
	if text, _ := v.text(t, now, 80, 8); strings.Contains(text, "b is held") || !strings.Contains(text, "patient") {
		t.Errorf("the end of it:\n%s", text)
	}
	v.press(keyHome)
	if text, _ := v.text(t, now, 80, 8); !strings.Contains(text, "b is held") {
		t.Errorf("its beginning:\n%s", text)
	}
	v.press("?")
	if text, _ := v.text(t, now, 80, 24); !strings.Contains(text, "evict the selected holder") {
		t.Errorf("help:\n%s", text)
	}
	v.press("x")
	v.states = nil
	if text, _ := v.text(t, now, 80, 24); !strings.Contains(text, "b is not in the list now") {
		t.Errorf("it is gone:\n%s", text)
	}
	if v.press(keyEscape); v.mode != topList {
		t.Error("Esc does not lead back")
	}
	if v.press("q"); !v.quits {
		t.Error("q does not quit")
	}
}

// A lock that the answer may have left out is not called free.
func TestTopDoesNotCallUnlistedFree(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, answer := range map[string]struct {
		next string
		err  error
	}{
		"more names": {next: "x"}, "damaged": {err: driver.ErrCorrupt}, "all of them": {},
	} {
		v := fleetView(now)
		v.app.flags = pflag.NewFlagSet("", pflag.ContinueOnError)
		v.app.flags.String(keyStore, "", "")
		v.app.flags.Set(keyStore, "sqlite:/x")
		v.press(keyEnter)
		v.take(leasehold.Page{States: v.states[1:], Next: answer.next}, answer.err, now)
		for _, key := range []string{"", "e"} {
			v.press(key)
			if text, _ := v.text(t, now, 80, 24); strings.Contains(text, "a is free") || !strings.Contains(text, "leasehold --store sqlite:/x show a") {
				t.Errorf("%s, key %q:\n%s", name, key, text)
			}
		}
	}
}

// A terminal may have hardly any room, and may lose it while something is shown.
func TestTopOnTinyTerminals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, keys := range map[string][]string{
		"list": {keyEnd}, "show": {keyEnter}, "help": {"?"}, "filter": {"/", "x"}, "reason": {"e", "x"}, "name": {"e", "x", keyEnter, "y"},
	} {
		for width := range 6 {
			for height := range 6 {
				v := fleetView(now)
				for _, key := range keys {
					v.press(key)
				}
				v.text(t, now, 80, 24)
				for range 20 { // beyond the end
					v.press(keyPageDown)
				}
				if frame := v.frame(now, width, height); (frame == nil) != (width == 0 || height == 0) {
					t.Errorf("%s of %d columns and %d lines: %q", name, width, height, frame)
				} else if frame != nil {
					v.text(t, now, width, height)
				}
			}
		}
	}
}

// Nobody is evicted without a reason and the name, and nobody but whom the prompt named.
func TestTopEvictsWhomItNamed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	press := func(v *topView, keys ...string) {
		for _, key := range keys {
			v.press(key)
		}
	}
	for name, c := range map[string]struct {
		keys  []string
		says  string
		evict string
	}{
		"confirmed":       {[]string{keyDown, keyDown, "e", "h", "a", "n", "g", "s", keyEnter, "b", keyEnter}, "evicting CCCCCCCC from b", "CCCCCCCC-secret"},
		"from a lock":     {[]string{keyEnter, "e", "x", keyEnter, "a", keyEnter}, "evicting AAAAAAAA from a", "AAAAAAAA-secret"},
		"another name":    {[]string{"e", "x", keyEnter, "b", keyEnter}, "that is not the name", ""},
		"no name":         {[]string{"e", "x", keyEnter, keyEnter}, "that is not the name", ""},
		"no reason":       {[]string{"e", keyEnter, " ", keyEnter}, "say why", ""},
		"Esc":             {[]string{"e", "x", keyEscape}, "nobody was evicted", ""},
		"Esc at the name": {[]string{"e", "x", keyEnter, "a", keyEscape}, "nobody was evicted", ""},
		"y is no yes":     {[]string{"e", "x", keyEnter, "y", keyEnter}, "that is not the name", ""},
		"kept":            {[]string{keyEnd, keyUp, "e"}, "leasehold reset c", ""},
		"nobody":          {[]string{keyEnd, "e"}, "nobody holds it", ""},
	} {
		v := fleetView(now)
		v.text(t, now, 80, 24)
		press(v, c.keys...)
		text, _ := v.text(t, now, 80, 24)
		if got := v.evicts; (got == nil) != (c.evict == "") || got != nil && got.holder.Owner.Reveal() != c.evict {
			t.Errorf("%s: evicts %+v", name, got)
		}
		if !strings.Contains(text, c.says) || strings.Contains(text, "secret") {
			t.Errorf("%s: no %q in:\n%s", name, c.says, text)
		}
	}
	// A successor that comes in before the name was typed is not evicted.
	v := fleetView(now)
	press(v, "e", "x", keyEnter)
	v.states[0].Holders[0].Owner = driver.OwnerOf("DDDDDDDD-secret")
	press(v, "a", keyEnter)
	if v.evicts == nil || v.evicts.holder.Owner.Reveal() != "AAAAAAAA-secret" || v.evicts.reason != "x" {
		t.Errorf("evicts %+v", v.evicts)
	}
	if v.press(keyInterrupt); !v.quits {
		t.Error("Ctrl-C does not quit")
	}
}

// Nor is a later lease of the same owner.
func TestTopSparesALaterLease(t *testing.T) {
	t.Parallel()
	d := memory.New()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	c, err := d.Claim(driver.Request{Resource: "a", Owner: "of its own choice", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	held := func() leasehold.Holder {
		state, err := locks.Inspect(t.Context(), "a")
		if err != nil || len(state.Holders) != 1 {
			t.Fatalf("%v, %v", state, err)
		}
		return state.Holders[0]
	}
	claimtest.Granted(t, c)
	first := held()
	claimtest.Released(t, c)
	claimtest.Granted(t, c)
	if says := evictNow(t.Context(), locks, &topEviction{name: "a", holder: first, reason: "x"}); !strings.Contains(says, "another lease") {
		t.Error(says)
	}
	if says := evictNow(t.Context(), locks, &topEviction{name: "a", holder: held(), reason: "x"}); !strings.Contains(says, "evicted ") {
		t.Error(says)
	}
}

// What the store does not confirm any more is shown with its age.
func TestTopTellsOldAnswers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := fleetView(now)
	later := now.Add(12 * time.Second)
	if text, _ := v.text(t, later, 80, 24); !strings.Contains(text, "as it was 12s ago: the store does not answer") || !strings.Contains(text, "first") {
		t.Errorf("%s", text)
	}
	v.take(leasehold.Page{}, errors.New("connection \x1b[2Jrefused"), later)
	if text, _ := v.text(t, later, 80, 24); !strings.Contains(text, "as it was 12s ago: connection [2Jrefused") || !strings.Contains(text, "first") {
		t.Errorf("%s", text)
	}
	v.take(leasehold.Page{}, nil, later)
	if text, _ := v.text(t, later, 80, 24); strings.Contains(text, "ago") || !strings.Contains(text, "no lock is held") {
		t.Errorf("%s", text)
	}
	none := &topView{app: &app{}, since: now}
	for at, says := range map[time.Duration]string{0: "asking the store", 5 * time.Second: "has not answered for 5s"} {
		if text, _ := none.text(t, now.Add(at), 80, 24); !strings.Contains(text, says) || strings.Contains(text, "no lock") || !strings.Contains(text, "Ctrl-C quits") {
			t.Errorf("%s", text)
		}
	}
	none.take(leasehold.Page{}, errors.New("refused"), now)
	if text, _ := none.text(t, now, 80, 24); !strings.Contains(text, "refused") {
		t.Errorf("%s", text)
	}
}

// Whatever the size of the terminal, a frame fits it, in each mode, and what is selected is on it.
func TestTopFitsEachScreen(t *testing.T) {
	t.Parallel()
	now := time.Now()
	many := fleetView(now)
	for i := range 100 {
		many.states = append(many.states, leasehold.State{Resource: fmt.Sprintf("many/%03d/%s", i, strings.Repeat("锁", i)), Holders: []leasehold.Holder{{Owner: driver.OwnerOf("EEEEEEEE-secret"), Note: strings.Repeat("🚀", i)}}})
	}
	many.more = true
	for _, keys := range [][]string{{}, {keyEnd}, {keyEnd, keyEnter}, {keyEnd, "e"}, {keyEnd, "e", "r", keyEnter}, {"?"}, {"/", "m"}, {keyPageDown, keyPageDown, "s"}} {
		v := *many
		for _, key := range keys {
			v.press(key)
		}
		for _, size := range [][2]int{{80, 24}, {120, 40}, {60, 20}, {20, 5}, {300, 100}, {1, 1}, {10, 3}, {80, 2}} {
			_, selected := v.text(t, now, size[0], size[1])
			if size[1] > 5 && v.mode == topList && selected == "" {
				t.Errorf("%v: nothing is selected on %v", keys, size)
			}
		}
	}
	if got := many.frame(now, 0, 0); got != nil { // a terminal without a size must not end the program
		t.Errorf("%q", got)
	}
}

func TestKeysAreDecoded(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string][]string{
		"": nil, "aé锁": {"a", "é", "锁"}, "\x1b[A\x1b[B\x1bOA\x1bOB": {keyUp, keyDown, keyUp, keyDown}, "\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~": {keyPageUp, keyPageDown, keyHome, keyEnd, keyHome, keyEnd},
		"\r\n\x7f\x08\x03\x1c\x15": {keyEnter, keyEnter, keyBackspace, keyBackspace, keyInterrupt, keyInterrupt, keyClear}, "\x1b": {keyEscape}, "\x1b\x1b": {keyEscape, keyEscape}, "\x1ba": {keyEscape, "a"},
		"\x1b[1;5C\x1b[200~x": {"x"}, "\x01\x02": nil, "\xffa": {"a"}, "\xe9": nil, "\x1b[": {keyEscape},
	} {
		if got, rest := decodeKeys([]byte(typed), true); !reflect.DeepEqual(got, want) || len(rest) > 0 {
			t.Errorf("%q is %q, %q; want %q", typed, got, rest, want)
		}
		// In whatever pieces they come.
		var got, keys []string
		var rest []byte
		for i := range len(typed) {
			keys, rest = decodeKeys(append(rest, typed[i]), false)
			got = append(got, keys...)
		}
		keys, _ = decodeKeys(rest, true)
		if got = append(got, keys...); !reflect.DeepEqual(got, want) {
			t.Errorf("%q in pieces is %q, want %q", typed, got, want)
		}
	}
}

func FuzzDecodeKeys(f *testing.F) {
	f.Add([]byte("\x1b[A\x1bO"))
	f.Fuzz(func(t *testing.T, typed []byte) {
		if _, rest := decodeKeys(typed, true); len(rest) > 0 {
			t.Errorf("%q leaves %q", typed, rest)
		}
		decodeKeys(typed, false)
	})
}
