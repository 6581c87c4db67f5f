package leasehold_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func TestLogTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		plain := func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, "id", "token": // of this run
				return slog.Attr{}
			}
			return a
		}
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: plain}))
		server := memory.NewServer()
		mine := newFaulty(t, server)
		locks := newLocker(t, mine, &leasehold.Options{Trace: leasehold.LogTrace(logger)})
		lease := acquire(t, locks, "x")
		locks.TryAcquire(t.Context(), "x")
		mine.Next(locktest.OpRenew, locktest.LoseRequest)
		time.Sleep(ttl / 2)
		mine.Always(locktest.OpRelease, locktest.LoseRequest)
		lease.Release(t.Context())
		mine.Always(locktest.OpRelease, nil)
		lost := acquire(t, locks, "y", leasehold.NoRenew())
		time.Sleep(2 * ttl)
		synctest.Wait()
		lost.Release(t.Context())
		got := log.String()
		for _, want := range []string{
			`level=INFO msg="lock wait granted" name=x engine=memory mode=exclusive took=0s`,
			`level=INFO msg="lock wait refused" name=x engine=memory mode=exclusive took=0s error="\"x\" is busy: held by `,
			`level=WARN msg="lock renewal failed" name=x engine=memory mode=exclusive took=0s left=6`,
			`level=WARN msg="lock hold unknown" name=x engine=memory mode=exclusive took=`,
			`level=ERROR msg="lock hold lost" name=y engine=memory mode=exclusive took=`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in\n%s", want, got)
			}
		}
		if strings.Contains(got, "DEBUG") {
			t.Errorf("what is for debugging is told:\n%s", got)
		}
	})
}

// Every step and kind has a word of its own.
func TestStepsHaveWords(t *testing.T) {
	seen := make(map[string]bool)
	for s := leasehold.StepBegun; s <= leasehold.StepRenewed; s++ {
		if word := s.String(); word == "" || word == "?" || seen[word] {
			t.Errorf("step %d: %q", s, word)
		}
		seen[s.String()] = true
	}
	if leasehold.Step(200).String() != "?" || leasehold.Kind(200).String() != "?" {
		t.Error("there is a word for what is not there")
	}
}
