//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold"
)

// metricsBound limits how long the end of a run waits until its metrics are written.
const metricsBound = time.Second

// A runMetrics writes the state of a run to a file for the textfile collector of Prometheus's node
// exporter. It replaces the whole file at each change. A nil one writes nothing. Only the end of
// the run waits for the disk, for at most metricsBound.
type runMetrics struct {
	app  *app
	path string
	name string
	done chan struct{} // closed when the end of the run has been written

	ahead time.Time // the last success that lay in the future when write read it

	mu      sync.Mutex
	now     runState      // guarded by mu
	changed chan struct{} // guarded by mu; receives an element when now must be written; nil: the run has ended
}

// A runState is the state that is written.
type runState struct {
	began, success time.Time // success is zero before the first success
	waiting, held  bool
	waited, took   time.Duration
	failures       int // of renewals
	lost           bool
	code           int // -1: the run has not ended
}

func newRunMetrics(a *app, path, name string) *runMetrics {
	if path == "" {
		return nil
	}
	m := &runMetrics{app: a, path: path, name: name, done: make(chan struct{}),
		now: runState{began: time.Now(), waiting: true, code: -1}, changed: make(chan struct{}, 1)}
	m.changed <- struct{}{}
	go m.write(m.changed)
	return m
}

// granted records that all names are held.
func (m *runMetrics) granted() {
	m.change(func(s *runState) { s.waiting, s.held, s.waited = false, true, time.Since(s.began) })
}

// endedEarly records that a lease ended before COMMAND did.
func (m *runMetrics) endedEarly() { m.change(func(s *runState) { s.lost = true }) }

// trace counts renewals that fail.
func (m *runMetrics) trace(_ context.Context, e leasehold.Event) {
	if e.Kind == leasehold.KindRenewal && e.Step == leasehold.StepFailed && !errors.Is(e.Err, leasehold.ErrLost) {
		m.change(func(s *runState) { s.failures++ })
	}
}

// ended records the exit code. It returns when that is written, or after metricsBound.
func (m *runMetrics) ended(code int) {
	if m == nil {
		return
	}
	m.change(func(s *runState) {
		if !s.held {
			s.waited = time.Since(s.began)
		} else if s.took = time.Since(s.began) - s.waited; code == 0 {
			s.success = time.Now()
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

// change changes the state, and lets write write it.
func (m *runMetrics) change(f func(*runState)) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.now)
	select {
	case m.changed <- struct{}{}:
	default: // an earlier change will be written too, or the run has ended
	}
}

// write writes each change until the run has ended. It warns once of each of the two ways in which
// this can fail.
func (m *runMetrics) write(changed <-chan struct{}) {
	defer close(m.done)
	var unlocked, failed bool
	for range changed {
		m.mu.Lock()
		s := m.now
		m.mu.Unlock()
		err := m.replace(&s)
		told := &failed
		if err == errFolderLocked {
			told = &unlocked
		}
		if err != nil && !*told {
			m.app.tell(onWarning, m.name, 0, "warning: the metrics %v", err)
			*told = true
		}
	}
}

// errFolderLocked is returned by replace when it has written a file without the lock on its folder.
var errFolderLocked = errors.New("are written without a lock, because another process locks their folder:" +
	" they may lack the success of a run that overlaps")

// replace writes s, with the last success of any run. Other runs may do the same meanwhile, so a lock
// on the folder covers the file from its reading to its replacement.
func (m *runMetrics) replace(s *runState) error {
	var locked error
	if folder, err := os.Open(filepath.Dir(m.path)); err == nil { // it may be one that can only be written
		defer folder.Close()
		locked = lockFolder(folder)
	}
	// An alert on the age of a success in the future would be silent. Either the clock was ahead, or
	// it is behind, as at a boot without a battery, and may be set before the run ends.
	last, now := m.lastSuccess(), time.Now()
	if last.After(now) {
		m.ahead = last
	}
	for _, t := range []time.Time{last, m.ahead} {
		if t.After(s.success) && !t.After(now) {
			s.success = t
		}
	}
	if err := replaceFile(m.path, s.text(m.name)); err != nil {
		return fmt.Errorf("cannot be written: %w", err)
	}
	return locked
}

// A run holds the lock on the folder for a few milliseconds. Any user who can read the folder can
// hold it for longer, so nobody waits for that.
const lockTries, lockPause = 20, 10 * time.Millisecond

// lockFolder locks folder until it is closed. Some file systems lock no folders.
func lockFolder(folder *os.File) error {
	for range lockTries {
		err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			return nil
		}
		time.Sleep(lockPause)
	}
	return errFolderLocked
}

// replaceFile replaces the content of path by text, atomically for readers.
func replaceFile(path string, text []byte) error {
	// The collector does not read files with this suffix.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644) // the exporter runs as another user
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error says more
	}
	return err
}

const successMetric = "leasehold_run_success_timestamp_seconds"

// lastSuccess returns when another run succeeded, according to the file that it wrote.
func (m *runMetrics) lastSuccess() time.Time {
	text, _ := readFile(m.path) // without a file there was none
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, successMetric+labelOf(m.name)+" "); ok {
			if seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && seconds > 0 {
				return time.UnixMilli(int64(math.Round(seconds * 1000)))
			}
		}
	}
	return time.Time{}
}

// labelOf returns the label with the name, escaped as in the exposition format.
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
