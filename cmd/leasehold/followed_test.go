package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
)

// instances is a service of some instances, one of which answers.
type instances struct {
	mu      sync.Mutex
	down    bool
	answers string
	name    string                    // of all instances, as of first processes of containers; "": each has its own
	warning func(after string) string // of the page after that; nil: none
	entries map[string][]happened     // by instance, the oldest first
	began   time.Time                 // when the instance that answers did; zero: long ago
	seeks   bool                      // the first page has no entries, because it took long to find any
	delays  bool                      // each answer takes a millisecond longer than the one before
	delay   time.Duration             // of the last answer
}

type happened struct {
	at   time.Time
	name string
}

func (s *instances) happens(instance string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.entries[instance] = append(s.entries[instance], happened{time.Now(), fmt.Sprintf("%s-%d.", instance, len(s.entries[instance])+1)})
	}
}

func (s *instances) set(down bool, answers string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.answers = down, answers
}

func (s *instances) History(ctx context.Context, query url.Values) (wire.Entries, error) {
	page, delay, err := s.answer(query)
	time.Sleep(delay)
	return page, err
}

func (s *instances) answer(query url.Values) (wire.Entries, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return wire.Entries{}, 0, errors.New("connection refused")
	}
	if s.delays {
		s.delay += time.Millisecond
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	all := s.entries[s.answers]
	i := len(all)
	after, err := strconv.Atoi(query.Get("after"))
	if err == nil {
		i = after - 1
	} else if s.seeks {
		limit = 0
	}
	page := wire.Entries{Instance: cmp.Or(s.name, s.answers), History: s.answers, Begins: time.Now().UTC().Format(time.RFC3339), BeginsMS: 1 << 30}
	if !s.began.IsZero() {
		page.BeginsMS = time.Since(s.began).Milliseconds()
	}
	for ; i > 0 && len(page.Entries) < limit; i-- {
		e := all[i-1]
		page.Entries = append(page.Entries, wire.Entry{Seq: strconv.Itoa(i), Kind: "granted", Name: e.name,
			Time: e.at.UTC().Format(time.RFC3339Nano), Ago: time.Since(e.at).Milliseconds()})
	}
	if s.warning != nil {
		page.Warning = s.warning(query.Get("after"))
	}
	if i > 0 {
		page.Next = strconv.Itoa(i + 1)
	}
	return page, s.delay, nil
}

// followed starts history --follow.
func followed(t *testing.T, s *instances, json bool) (printed func() (stdout, stderr string)) {
	return followedBy(t, s, json, &reader{})
}

// A reader is a standard output whose reader pauses before it takes the first text.
type reader struct {
	pause time.Duration
	mu    sync.Mutex
	text  bytes.Buffer // guarded by mu
}

func (r *reader) Write(text []byte) (int, error) {
	time.Sleep(r.pause)
	r.pause = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(text)
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func followedBy(t *testing.T, s *instances, json bool, out *reader) (printed func() (stdout, stderr string)) {
	var err bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	h := history{a: &app{json: json, stdout: out, stderr: &err}, limit: historyLimit, follow: true}
	var done sync.WaitGroup
	done.Go(func() { h.show(ctx, s) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return func() (string, string) {
		time.Sleep(3 * time.Second)
		synctest.Wait()
		return out.String(), err.String()
	}
}

// All that happened in an outage is printed, or a warning says that events are missing.
func TestFollowedHistoryAfterAnOutage(t *testing.T) {
	for _, json := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &instances{answers: "a", entries: map[string][]happened{}}
			s.happens("a", 3)
			printed := followed(t, s, json)
			printed()
			s.set(true, "a")
			printed()
			s.happens("a", 2500)
			s.set(false, "a")
			out, says := printed()
			if n := strings.Count(out, "granted"); n != 2503 || strings.Contains(says, "events are missing") {
				t.Errorf("json %v: %d lines of 2,503; %s", json, n, says)
			}
			s.happens("a", followMost+7)
			if out, says = printed(); strings.Count(out, "granted") != 2503+followMost || !strings.Contains(says, "events are missing") {
				t.Errorf("json %v: %d lines; %s", json, strings.Count(out, "granted"), says)
			}
		})
	}
}

// A warning of the service is printed once, whenever it appears and on whichever page.
func TestHistoryTellsWarnings(t *testing.T) {
	for _, json := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &instances{answers: "a", entries: map[string][]happened{}}
			s.happens("a", 3)
			printed := followed(t, s, json)
			printed()
			for _, warning := range []string{"older is missing", "newer is missing"} {
				s.mu.Lock()
				s.warning = func(string) string { return warning }
				s.mu.Unlock()
				if _, says := printed(); strings.Count(says, warning) != 1 {
					t.Errorf("json %v: no %q, or several, in %q", json, warning, says)
				}
			}
			var out, says bytes.Buffer
			h := history{a: &app{json: json, stdout: &out, stderr: &says}, limit: 2 * wire.MaxPage}
			s.happens("a", wire.MaxPage)
			s.warning = func(after string) string { return after }
			if err := h.show(t.Context(), s); err != nil || !strings.Contains(says.String(), "warning: 4") {
				t.Errorf("json %v: %v, %q", json, err, says.String())
			}
		})
	}
}

// Instances that take turns are both listened to, also if they have the same name.
func TestFollowedHistoryOfSeveralInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { ofSeveralInstances(t, "") })
	synctest.Test(t, func(t *testing.T) { ofSeveralInstances(t, "host[1]") })
}

func ofSeveralInstances(t *testing.T, name string) {
	s := &instances{answers: "a", name: name, entries: map[string][]happened{}}
	s.happens("a", 2)
	s.happens("b", 9)
	printed := followed(t, s, false)
	printed()
	for range 3 {
		s.happens("b", 1)
		s.set(false, "b")
		printed()
		s.happens("a", 1)
		s.set(false, "a")
		printed()
	}
	out, says := printed()
	if strings.Count(out, "granted") != 2+6 || strings.Contains(out, "b-9.") {
		t.Errorf("printed:\n%s", out)
	}
	if strings.Count(says, "as seen by "+cmp.Or(name, "a")) == 0 || strings.Count(says, "as seen by "+cmp.Or(name, "b")) == 0 || strings.Count(says, "as seen by") != 2 {
		t.Errorf("said:\n%s", says)
	}
}

// A blocked output hides no events: those that another instance recorded meanwhile are printed afterwards.
func TestFollowedHistoryAfterABlockedOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &instances{answers: "a", entries: map[string][]happened{}}
		s.happens("a", 1)
		out := &reader{pause: 10 * time.Minute}
		printed := followedBy(t, s, false, out)
		time.Sleep(time.Minute)
		s.happens("b", 1)
		s.set(false, "b")
		time.Sleep(10 * time.Minute)
		if out, says := printed(); !strings.Contains(out, " b-1.") || strings.Contains(says, "missing") {
			t.Errorf("printed:\n%s\nsaid:\n%s", out, says)
		}
	})
}

// An instance's next look may find a grant that came before an end it has just recorded.
func TestFollowedHistoryIsInNoOrderOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &instances{answers: "a", entries: map[string][]happened{}}
		printed := followed(t, s, false)
		printed()
		s.happens("a", 1)
		printed()
		s.mu.Lock()
		s.entries["b"] = []happened{{time.Now(), "ended."}, {time.Now().Add(-4 * time.Second), "granted."}}
		s.mu.Unlock()
		s.set(false, "b")
		if out, says := printed(); !strings.Contains(out, " ended.") || strings.Contains(out, " granted.") || strings.Contains(says, "missing") {
			t.Errorf("printed:\n%s\nsaid:\n%s", out, says)
		}
	})
}

// A new container whose clock is behind may reuse the name of the former instance with lower
// numbers. Its events are printed all the same, also if its first answer has none.
func TestFollowedHistoryOfANewInstanceOfTheSameName(t *testing.T) {
	for _, empty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &instances{answers: "a", name: "host[1]", entries: map[string][]happened{}}
			s.happens("a", 9)
			printed := followed(t, s, false)
			printed()
			s.mu.Lock()
			s.answers, s.began = "b", time.Now()
			s.mu.Unlock()
			if empty {
				printed()
			}
			for range 3 {
				s.happens("b", 2)
				printed()
			}
			if out, _ := printed(); strings.Count(out, "granted") != 9+6 {
				t.Errorf("empty %v: printed:\n%s", empty, out)
			}
		})
	}
}

// A service that searches its file for long answers with a page without entries. What is on the
// next one is printed once.
func TestFollowedHistoryThatIsSearchedForLong(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &instances{answers: "a", entries: map[string][]happened{}, seeks: first}
			s.happens("a", 3)
			printed := followed(t, s, false)
			printed()
			s.mu.Lock()
			s.seeks, s.delays = true, true
			s.mu.Unlock()
			if out, says := printed(); strings.Count(out, "granted") != 3 || strings.Contains(says, "missing") {
				t.Errorf("from the first look %v: printed:\n%s\nsaid:\n%s", first, out, says)
			}
			s.happens("a", 2)
			if out, _ := printed(); strings.Count(out, "granted") != 5 {
				t.Errorf("from the first look %v: printed:\n%s", first, out)
			}
		})
	}
}

// A number that has fallen, because the newest entry was dropped, prints nothing again.
func TestFollowedHistoryWhoseNewestEntryIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &instances{answers: "a", entries: map[string][]happened{}}
		s.happens("a", 3)
		printed := followed(t, s, false)
		printed()
		s.mu.Lock()
		s.entries["a"], s.delays = s.entries["a"][:2], true
		s.mu.Unlock()
		if out, _ := printed(); strings.Count(out, "granted") != 3 {
			t.Errorf("printed:\n%s", out)
		}
	})
}
