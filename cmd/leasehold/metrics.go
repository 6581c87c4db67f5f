//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// metricsBound is how long the end of a run waits for its metrics to be written.
const metricsBound = time.Second

// A runMetrics writes what becomes of a run to a file for the textfile collector of Prometheus'
// node exporter, each time as a whole. A nil one writes nothing. Nothing waits for the disk but the
// end of the run, and that not for long.
type runMetrics struct {
	app  *app
	path string
	name string
	done chan struct{} // closed when the end of the run is written

	mu      sync.Mutex
	now     runState      // guarded by mu
	changed chan struct{} // guarded by mu; has an element when now is to be written; nil: the run has ended
}

// A runState is what is written.
type runState struct {
	began, success time.Time // success is zero before the first
	waiting, held  bool
	waited, took   time.Duration
	failures       int // of renewals
	lost           bool
	code           int // -1: it goes on
}

func newRunMetrics(a *app, path, name string) *runMetrics {
	if path == "" {
		return nil
	}
	m := &runMetrics{app: a, path: path, name: name, done: make(chan struct{}), changed: make(chan struct{}, 1)}
	go m.write(m.changed)
	m.change(func(s *runState) {
		*s = runState{began: time.Now(), waiting: true, code: -1}
	})
	return m
}

// granted notes that all names are held.
func (m *runMetrics) granted() {
	m.change(func(s *runState) { s.waiting, s.held, s.waited = false, true, time.Since(s.began) })
}

// endedEarly notes that a lease is over that COMMAND needed.
func (m *runMetrics) endedEarly() { m.change(func(s *runState) { s.lost = true }) }

// trace notes renewals that fail.
func (m *runMetrics) trace(_ context.Context, e leasehold.Event) {
	if e.Kind == leasehold.KindRenewal && e.Step == leasehold.StepFailed && !errors.Is(e.Err, leasehold.ErrLost) {
		m.change(func(s *runState) { s.failures++ })
	}
}

// ended notes the exit code, and returns when that is written, or the disk takes too long.
func (m *runMetrics) ended(code int) {
	if m == nil {
		return
	}
	m.change(func(s *runState) {
		if s.held {
			s.took = time.Since(s.began) - s.waited
			if code == 0 {
				s.success = time.Now()
			}
		}
		s.waiting, s.held, s.code = false, false, code
	})
	m.mu.Lock()
	close(m.changed)
	m.changed = nil
	m.mu.Unlock()
	select {
	case <-m.done:
	case <-time.After(metricsBound):
	}
}

// change changes what is written, and has it written.
func (m *runMetrics) change(f func(*runState)) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.now)
	select {
	case m.changed <- struct{}{}:
	default: // it is still to be written, or the run has ended
	}
}

// write writes each change until the run has ended.
func (m *runMetrics) write(changed <-chan struct{}) {
	defer close(m.done)
	before, failed := m.lastSuccess(), false
	for range changed {
		m.mu.Lock()
		s := m.now
		m.mu.Unlock()
		if s.success.IsZero() {
			s.success = before
		}
		err := replaceFile(m.path, s.text(m.name))
		if err != nil && !failed {
			m.app.tell(onWarning, m.name, 0, "warning: the metrics cannot be written: %v", err)
			failed = true
		}
	}
}

// replaceFile has path contain text at once: whoever reads it sees all of the old or of the new.
func replaceFile(path string, text []byte) error {
	// Its name ends otherwise than those that the collector reads.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644) // the exporter is another user
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error tells more
	}
	return err
}

const successMetric = "leasehold_run_success_timestamp_seconds"

// lastSuccess is when a former run has succeeded, as far as it has written that.
func (m *runMetrics) lastSuccess() time.Time {
	text, _ := readFile(m.path) // without it there was none
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, successMetric+labelOf(m.name)+" "); ok {
			if seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && seconds > 0 {
				return time.UnixMilli(int64(seconds * 1000))
			}
		}
	}
	return time.Time{}
}

// labelOf is escaped as the exposition format has it.
func labelOf(name string) string {
	return `{name="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(name) + `"}`
}

func (s *runState) text(name string) []byte {
	var b bytes.Buffer
	metric := func(metric, help string, value float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s%s %s\n", metric, help, metric, metric, labelOf(name), strconv.FormatFloat(value, 'f', -1, 64))
	}
	metric("leasehold_run_start_timestamp_seconds", "When the last run started.", stampOf(s.began))
	metric(successMetric, "When a run last ended with exit code 0; 0 if none has.", stampOf(s.success))
	metric("leasehold_run_waiting", "Whether the run waits for its lock.", flagOf(s.waiting))
	metric("leasehold_run_held", "Whether the run holds its lock.", flagOf(s.held))
	metric("leasehold_run_wait_seconds", "How long the run waited for its lock.", s.waited.Seconds())
	metric("leasehold_run_hold_seconds", "How long the run held its lock, once it has ended.", s.took.Seconds())
	metric("leasehold_run_renewal_failures", "How many renewals of its lease failed.", float64(s.failures))
	metric("leasehold_run_lost", "Whether its lease was lost.", flagOf(s.lost))
	if s.code >= 0 {
		metric("leasehold_run_exit_code", "The exit code of the run; see leasehold help run --full.", float64(s.code))
	}
	return b.Bytes()
}

func stampOf(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func flagOf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
