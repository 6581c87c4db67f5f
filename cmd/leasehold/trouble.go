package main

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold"
)

const (
	// troubleFirst is how long errors last before the first warning. Most failovers are shorter.
	troubleFirst = time.Second
	// troubleAgain is the least time between two warnings about the same error, if others came in
	// between.
	troubleAgain = time.Minute
)

// A trouble reports errors of a call that keeps trying to acquire. It warns once for each change of
// the error, and reports when the store answers again.
type trouble struct {
	app       *app
	campaigns bool // a failed wait is followed by another

	mu    sync.Mutex
	since time.Time            // guarded by mu; when the errors began; zero: there are none
	timer *time.Timer          // guarded by mu; prints the first warning
	name  string               // guarded by mu; name of the lock
	err   error                // guarded by mu; the last error
	last  string               // guarded by mu; kind of the last warning; "": none yet
	said  map[string]time.Time // guarded by mu; by kind, time of the last warning
}

// trace is a leasehold.Trace.
func (t *trouble) trace(_ context.Context, e leasehold.Event) {
	switch {
	case e.Kind != leasehold.KindWait, e.Local:
	case removed(e.Err) && t.campaigns:
		t.app.tell(onWarning, e.Name, 0, "warning: %s; campaigning again", textOf(e.Err))
	case e.Step == leasehold.StepRetrying, e.Step == leasehold.StepFailed && t.campaigns:
		t.failed(e.Name, e.Err)
	case e.Step == leasehold.StepQueued, e.Step.Holds():
		t.end(true)
	case e.Step.Ends():
		t.end(false)
	}
}

func (t *trouble) failed(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.name, t.err = name, err
	if t.since.IsZero() {
		t.since, t.said = time.Now(), make(map[string]time.Time)
		since := t.since
		t.timer = time.AfterFunc(troubleFirst, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.since.Equal(since) {
				t.say()
			}
		})
	} else if t.last != "" {
		t.say()
	}
}

// say warns of the last error, unless the last warning was about the same kind. Requires t.mu.
func (t *trouble) say() {
	kind := kindOf(t.err)
	if kind == t.last || !t.said[kind].IsZero() && time.Since(t.said[kind]) < troubleAgain {
		return
	}
	t.last, t.said[kind] = kind, time.Now()
	t.app.tell(onWarning, t.name, 0, "warning: cannot acquire %s: %s; trying again\n%s",
		shown(t.name), textOf(t.err), t.app.advice(t.err))
}

// end ends the trouble. If there was a warning, and the store answers, it reports that.
func (t *trouble) end(answers bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return
	}
	t.timer.Stop()
	if t.last != "" && answers {
		t.app.tell(onRecovered, t.name, 0, "the store answers again, after %s", seconds(time.Since(t.since)))
	}
	t.since, t.last = time.Time{}, ""
}

// kindOf returns the same text for errors that differ only in numbers, such as ports and times.
func kindOf(err error) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, err.Error())
}
