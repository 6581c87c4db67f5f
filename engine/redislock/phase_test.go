package redislock

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// TestPhases walks the table of doc.go.
func TestPhases(t *testing.T) {
	t.Parallel()
	for _, row := range tableOfPhases(t) {
		for p, want := range row.wants {
			t.Run(row.event+" when "+phase(p).String(), func(t *testing.T) {
				t.Parallel()
				if got := afterEvent(t, row.event, phase(p), uncertain{release: phase(p) == leaving}); got != want {
					t.Errorf("%s; want %s", got, want)
				}
			})
		}
	}
}

type phaseRow struct {
	event string
	wants []string // for each phase
}

// tableOfPhases reads doc.go: a row begins with an event, and a want with a phase.
func tableOfPhases(t *testing.T) (rows []phaseRow) {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "//\tevent ")
	table, _, _ = strings.Cut(table, "\n//\n")
	for line := range strings.Lines(table) {
		cells, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			continue
		}
		var row phaseRow
		var event []string
		for _, word := range strings.Fields(cells) {
			switch last := len(row.wants) - 1; {
			case isPhase(word):
				row.wants = append(row.wants, word)
			case last < 0:
				event = append(event, word)
			default:
				row.wants[last] += " " + word
			}
		}
		row.event = strings.Join(event, " ")
		if len(row.wants) != int(over)+1 {
			t.Fatalf("row %q tells of %d phases", row.event, len(row.wants))
		}
		rows = append(rows, row)
	}
	if len(rows) != 11 {
		t.Fatalf("%d rows", len(rows))
	}
	return rows
}

func isPhase(word string) bool {
	for p := idle; p <= over; p++ {
		if p.String() == word {
			return true
		}
	}
	return false
}

// What the server answers to an event, by the script.
var eventReplies = map[string]any{
	"Try yes": []any{int64(replyGranted), int64(7), int64(0)}, "Try no": []any{int64(replyBusy), int64(0), int64(0), int64(0)},
	"Try place": []any{int64(replyBusy), int64(0), int64(0), int64(0)},
	"Renew yes": []any{int64(7), int64(0)}, "Renew lost": []any{int64(0)},
	"Release yes": int64(1), "Release nothing": int64(0),
}

// What may still come is settled by what leaves a mark against it, and by nothing else.
func TestWhatIsUncertain(t *testing.T) {
	t.Parallel()
	for event, want := range map[string]string{
		"Try yes": "held +attempt", "Try no": "over", "Try place": "queued +attempt", "Try unknown": "held +attempt +release",
		"brought": "held +attempt +release", "Renew yes": "held +attempt +release", "Renew lost": "over +attempt +release",
		"Release yes": "over", "Release nothing": "over", "Release unknown": "leaving +attempt +release",
	} {
		if got := afterEvent(t, event, held, uncertain{attempt: true, release: true}); got != want {
			t.Errorf("%s: %s; want %s", event, got, want)
		}
	}
}

// afterEvent is what an event makes of a claim in that phase, of which that is uncertain.
func afterEvent(t *testing.T, event string, from phase, unsure uncertain) string {
	t.Helper()
	answer := eventReplies[event]
	d := driverOn(t, speaking(t, func(words []string) any {
		if answer == nil {
			return hangUp{}
		}
		if _, refused := answer.([]any); refused && isScript(words, scriptRelease) { // what is refused is given back
			return int64(1)
		}
		if n, released := answer.(int64); released && isScript(words, scriptRenew) { // first it looks what there is
			return []any{9 * n, int64(0)}
		}
		return answer
	}), nil)
	d.known.contended("lock:n", true) // acquire.lua answers
	made, err := d.Claim(driver.Request{Resource: "n", Owner: "owner", TTL: time.Second, Queue: event == "Try place" || event == "brought"})
	if err != nil {
		t.Fatal(err)
	}
	c := made.(*claim)
	c.update(func(s *state) {
		s.become(from) // of unknown fence: renew.lua answers
		s.uncertain = unsure
	})
	within := time.Minute // a busy machine may take long
	if answer == nil || event == "Try place" {
		within = 2 * time.Second // of what does not come; half of it is for a subscription
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	switch call, _, _ := strings.Cut(event, " "); call {
	case "Try":
		_, _ = c.Try(ctx)
	case "Renew":
		_, _ = c.Renew(ctx, time.Second)
	case "Release":
		_ = c.Release(ctx, driver.End{})
	case "brought":
		if !c.receiveGrant(7) {
			t.Error("refused")
		}
	}
	return c.load().String()
}

func (s state) String() string {
	text := s.phase.String()
	for _, one := range []struct {
		is   bool
		name string
	}{{s.uncertain.attempt, "attempt"}, {s.uncertain.release, "release"}} {
		if one.is {
			text += " +" + one.name
		}
	}
	return text
}

// Only what may be held has a grant.
func TestPhasesWithoutAGrant(t *testing.T) {
	t.Parallel()
	for p := idle; p <= over; p++ {
		var s state
		s.hold(7)
		s.become(p)
		if kept := s.grant != (grant{}); kept != (p == held || p == leaving) {
			t.Errorf("%v: it has a grant: %v", p, kept)
		}
	}
}
