package leasehold_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// events keeps what a Trace is told, and complains of what does not pair.
type events struct {
	mu    sync.Mutex
	all   []leasehold.Event // guarded by mu
	pairs locktest.Pairs
}

func (es *events) trace(ctx context.Context, e leasehold.Event) {
	es.pairs.Trace(ctx, e)
	es.mu.Lock()
	defer es.mu.Unlock()
	es.all = append(es.all, e)
}

// of returns the steps of one kind in order, and forgets everything.
func (es *events) of(kind leasehold.Kind) (steps []string) {
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, e := range es.all {
		if e.Kind == kind {
			steps = append(steps, e.Step.String())
		}
	}
	return steps
}

func (es *events) forget() {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.all = nil
}

// Each wait, hold and renewal that begins ends once, whatever comes of it.
func TestTracePairs(t *testing.T) {
	for _, tc := range tracedPaths {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, es := memory.NewServer(), &events{}
				mine := newFaulty(t, server)
				p := &paths{newLocker(t, mine, &leasehold.Options{Trace: es.trace}), mine, newLocker(t, server.Connect(), nil), es}
				tc.path(t, p)
				time.Sleep(time.Second)
				synctest.Wait()
				if err := es.pairs.Err(); err != nil {
					t.Error(err)
				}
				if left := es.pairs.Open(); len(left) > 0 {
					t.Errorf("begun, and not ended: %+v", left)
				}
				es.want(t, leasehold.KindWait, tc.waits)
				es.want(t, leasehold.KindHold, tc.holds)
				es.wantCauses(t, tc.causes)
			})
		})
	}
}

// wantCauses checks the words for what was lost.
func (es *events) wantCauses(t *testing.T, want string) {
	t.Helper()
	for _, e := range es.all {
		if cause := e.Cause(); cause != "" && cause != cmp.Or(want, cause) {
			t.Errorf("%+v: the cause is %s, want %s", e, cause, want)
		} else if cause != "" && !slices.Contains(leasehold.Causes(), cause) {
			t.Errorf("Causes lacks %s", cause)
		}
	}
}

// want checks the ends of one kind, in any order.
func (es *events) want(t *testing.T, kind leasehold.Kind, want string) {
	t.Helper()
	ends := slices.DeleteFunc(es.of(kind), func(s string) bool { return s == "begun" || s == "queued" })
	slices.Sort(ends)
	if got := strings.Join(ends, " "); want != "*" && got != want {
		t.Errorf("%ss ended as %q, want %q", kind, got, want)
	}
}
