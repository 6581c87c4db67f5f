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
	// troubleFirst is how long a trouble lasts before it is worth a word: a failover is over by then.
	troubleFirst = time.Second
	// troubleAgain is how soon an error that has come before may be said again, when others came in between.
	troubleAgain = time.Minute
)

// A trouble is what keeps a call from acquiring while it goes on trying: it is said once for each change,
// and its end is.
type trouble struct {
	app       *app
	campaigns bool // a wait that fails is followed by another

	mu    sync.Mutex
	since time.Time            // guarded by mu; zero: there is none
	timer *time.Timer          // guarded by mu; says the first word
	name  string               // guarded by mu: of the lock
	err   error                // guarded by mu: the last
	last  string               // guarded by mu: the kind of what was said last; "": nothing was
	said  map[string]time.Time // guarded by mu: when, by kind
}

// trace is a leasehold.Trace.
func (t *trouble) trace(_ context.Context, e leasehold.Event) {
	switch {
	case e.Kind != leasehold.KindWait, e.Local:
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

// say says the last error unless it is the same as before. t.mu is locked.
func (t *trouble) say() {
	kind := kindOf(t.err)
	if kind == t.last || !t.said[kind].IsZero() && time.Since(t.said[kind]) < troubleAgain {
		return
	}
	t.last, t.said[kind] = kind, time.Now()
	t.app.announce(onWarning, t.name, "warning: cannot acquire %s: %s; trying again\n%s",
		shown(t.name), strings.TrimPrefix(t.err.Error(), "leasehold: "), t.app.advice(t.err))
}

// end forgets the trouble. If it was said, so is that the store answers again.
func (t *trouble) end(answers bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return
	}
	t.timer.Stop()
	if t.last != "" && answers {
		t.app.announce(onRecovered, t.name, "the store answers again, after %s", seconds(time.Since(t.since)))
	}
	t.since, t.last = time.Time{}, ""
}

// kindOf is the same for errors that differ in numbers only, such as ports and times.
func kindOf(err error) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, err.Error())
}
