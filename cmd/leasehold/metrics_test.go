//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// metric is the value of a metric of "job" in a file; false: it is not there.
func (c *cli) metric(file, name string) (float64, bool) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "leasehold_run_"+name+`{name="job"} `); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				c.t.Fatal(err)
			}
			return n, true
		}
	}
	return 0, false
}

// wantMetrics checks metrics of a file, given as "name value"; a dash is none.
func (c *cli) wantMetrics(file string, want ...string) {
	c.t.Helper()
	for _, w := range want {
		name, value, _ := strings.Cut(w, " ")
		got, there := c.metric(file, name)
		if text := strconv.FormatFloat(got, 'f', -1, 64); there != (value != "-") || there && text != value {
			c.t.Errorf("%s: %s is %s, %v; want %s", file, name, text, there, value)
		}
	}
}

// untilMetric waits until a metric has a value.
func (c *cli) untilMetric(file, name string, value float64) {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got, there := c.metric(file, name); there && got == value {
			return
		}
	}
	c.t.Fatalf("%s does not become %v", name, value)
}

func TestMetricsOfARun(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	began := time.Now().Add(-time.Second)
	j := c.start("run", "--metrics-file", "job.prom", "job", "--", "sh", "-c", "echo > held; while [ ! -e go ]; do sleep 0.05; done; exit 3")
	c.read("held")
	c.untilMetric("job.prom", "held", 1)
	c.wantMetrics("job.prom", "waiting 0", "exit_code -", "success_timestamp_seconds 0", "lost 0")
	// One that finds it busy says so in its own file.
	c.wantRun(1, "-n", "--metrics-file", "other.prom", "job", "--", "true")
	c.wantMetrics("other.prom", "waiting 0", "held 0", "exit_code 1", "success_timestamp_seconds 0", "hold_seconds 0")
	waiter := c.start("run", "--metrics-file", "waiter.prom", "job", "--", "true")
	c.untilMetric("waiter.prom", "waiting", 1)
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := j.code(); code != 3 {
		t.Fatalf("exit code %d: %s", code, j.errors())
	}
	c.wantMetrics("job.prom", "held 0", "exit_code 3", "success_timestamp_seconds 0")
	if held, _ := c.metric("job.prom", "hold_seconds"); held <= 0 {
		t.Errorf("held for %v", held)
	}
	if code := waiter.code(); code != 0 {
		t.Fatalf("exit code %d: %s", code, waiter.errors())
	}
	if waited, _ := c.metric("waiter.prom", "wait_seconds"); waited <= 0 {
		t.Errorf("waited for %v", waited)
	}
	success, _ := c.metric("waiter.prom", "success_timestamp_seconds")
	if at := time.UnixMilli(int64(success * 1000)); at.Before(began) || at.After(time.Now()) {
		t.Errorf("success at %v", at)
	}
	// The last success outlives runs that fail.
	c.wantRun(5, "--metrics-file", "waiter.prom", "job", "--", "sh", "-c", "exit 5")
	c.wantMetrics("waiter.prom", "exit_code 5", fmt.Sprintf("success_timestamp_seconds %s", strconv.FormatFloat(success, 'f', -1, 64)))
	if info, err := os.Stat(filepath.Join(c.dir, "waiter.prom")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v: the exporter cannot read it", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, ".*.tmp")); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

// A run that began before another one succeeded does not take the success back. If it waits in vain,
// it says for how long.
func TestMetricsOfRunsThatOverlap(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	holder := c.start("run", "--metrics-file", "job.prom", "job", "--", "sh", "-c", "echo > held; while [ ! -e go ]; do sleep 0.05; done")
	c.read("held")
	c.untilMetric("job.prom", "held", 1)
	waiter := c.start("run", "--metrics-file", "job.prom", "job", "--", "sh", "-c", "echo > second; while [ ! -e end ]; do sleep 0.05; done; exit 3")
	c.untilMetric("job.prom", "waiting", 1)
	c.wantRun(1, "-w", "1s", "--metrics-file", "vain.prom", "job", "--", "true")
	if waited, _ := c.metric("vain.prom", "wait_seconds"); waited < 0.5 {
		t.Errorf("waited in vain for %v s", waited)
	}
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ended := time.Now().Add(-time.Second)
	put("go")
	if code := holder.code(); code != 0 {
		t.Fatalf("exit code %d: %s", code, holder.errors())
	}
	c.read("second")
	put("end")
	if code := waiter.code(); code != 3 {
		t.Fatalf("exit code %d: %s", code, waiter.errors())
	}
	c.wantMetrics("job.prom", "exit_code 3")
	if success, _ := c.metric("job.prom", "success_timestamp_seconds"); success < float64(ended.Unix()) {
		t.Errorf("the first run succeeded after %v, the last success is at %v", ended.Unix(), success)
	}
}

// A success that was stamped while the clock was ahead is forgotten once the clock is set right, or
// no alert on its age would fire for as long as the clock was ahead.
func TestMetricsForgetASuccessInTheFuture(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.wantRun(0, "--metrics-file", "job.prom", "job", "--", "true")
	text := regexp.MustCompile(`(_success_timestamp_seconds\{.*\}) .*`).ReplaceAllString(c.file("job.prom"), fmt.Sprint("$1 ", time.Now().AddDate(1, 0, 0).Unix()))
	if err := os.WriteFile(filepath.Join(c.dir, "job.prom"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.wantRun(5, "--metrics-file", "job.prom", "job", "--", "sh", "-c", "exit 5")
	c.wantMetrics("job.prom", "exit_code 5", "success_timestamp_seconds 0")
}

// A success that lies in the future only because the clock is behind, as before a machine without a
// battery has asked for the time, is kept once the clock is set.
func TestMetricsKeepASuccessWhileTheClockIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cli{t: t, dir: t.TempDir()}
		path := filepath.Join(c.dir, "job.prom")
		success := time.Now().Add(time.Minute)
		if err := os.WriteFile(path, (&runState{success: success}).text("job"), 0o600); err != nil {
			t.Fatal(err)
		}
		m := newRunMetrics(&app{}, path, "job")
		synctest.Wait()
		c.wantMetrics("job.prom", "waiting 1", "success_timestamp_seconds 0")
		m.granted()
		synctest.Wait()
		c.wantMetrics("job.prom", "held 1", "success_timestamp_seconds 0")
		time.Sleep(2 * time.Minute)
		m.ended(5)
		c.wantMetrics("job.prom", "exit_code 5", fmt.Sprint("success_timestamp_seconds ", success.Unix()))
	})
}

// A success in the future does not hide one that another run has had meanwhile.
func TestMetricsTakeASuccessBesideOneInTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cli{t: t, dir: t.TempDir()}
		path := filepath.Join(c.dir, "job.prom")
		succeeded := func(at time.Time) {
			if err := os.WriteFile(path, (&runState{success: at}).text("job"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		succeeded(time.Now().AddDate(1, 0, 0))
		m := newRunMetrics(&app{}, path, "job")
		synctest.Wait()
		other := time.Now().Add(-time.Minute)
		succeeded(other)
		m.ended(5)
		c.wantMetrics("job.prom", "exit_code 5", fmt.Sprint("success_timestamp_seconds ", other.Unix()))
	})
}

// A folder that another process locks delays nothing for long: the metrics are written all the
// same.
func TestMetricsInALockedFolder(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	folder, err := os.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		t.Skipf("the file system locks no folders: %v", err)
	}
	o := c.wantRun(0, "--metrics-file", "job.prom", "job", "--", "true")
	c.wantMetrics("job.prom", "exit_code 0")
	if n := strings.Count(o.stderr, "warning: the metrics"); n != 1 {
		t.Errorf("warned %d times: %s", n, o.stderr)
	}
}

// After a warning that the folder is locked, the run still reports that its end cannot be written.
func TestMetricsThatCannotBeWrittenAfterALockedFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "metrics")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		folder, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer folder.Close()
		if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
			t.Skipf("the file system locks no folders: %v", err)
		}
		var says bytes.Buffer
		m := newRunMetrics(&app{stderr: &says}, filepath.Join(dir, "job.prom"), "job")
		for range 2 {
			m.granted()
			time.Sleep(metricsBound)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			m.endedEarly()
			synctest.Wait()
		}
		m.ended(0)
		for _, text := range []string{"are written without a lock", "cannot be written"} {
			if n := strings.Count(says.String(), "warning: the metrics "+text); n != 1 {
				t.Errorf("warned %d times that they %s:\n%s", n, text, &says)
			}
		}
	})
}

// What is written is what the collector reads, whatever the name.
func TestMetricsAreOnesOfPrometheus(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: scripts/install-tools promtool")
	}
	c := newCLI(t)
	for _, name := range []string{"job", `a "b\c`, "锁/42"} {
		c.wantRun(0, "--metrics-file", "x.prom", name, "--", "true")
		c.stdin = c.file("x.prom")
		o := c.exec(promtool, "check", "metrics")
		if o.code != 0 || o.stdout+o.stderr != "" {
			t.Errorf("%q: exit code %d, %s%s\n%s", name, o.code, o.stdout, o.stderr, c.stdin)
		}
	}
	contains(t, c.stdin, `leasehold_run_exit_code{name="锁/42"} 0`)
}

// The page names what is written, and all of it.
func TestPageNamesTheMetrics(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.wantRun(0, "--metrics-file", "x.prom", "job", "--", "true")
	page, err := os.ReadFile("../../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	namesIn := func(text string) []string {
		names := regexp.MustCompile(`\bleasehold_run_[a-z_]+`).FindAllString(text, -1)
		slices.Sort(names)
		return slices.Compact(names)
	}
	if written, named := namesIn(c.file("x.prom")), namesIn(string(page)); !slices.Equal(written, named) {
		t.Errorf("written: %q; named: %q", written, named)
	}
}

// A job is not kept from its work by metrics that cannot be written.
func TestMetricsThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if err := os.Mkdir(filepath.Join(c.dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"missing/x.prom", "folder", "/proc/x.prom"} {
		o := c.wantRun(0, "--metrics-file", file, "job", "--", "echo", "has run")
		if o.stdout != "has run\n" || strings.Count(o.stderr, "warning: the metrics cannot be written") != 1 {
			t.Errorf("%s: %q, %q", file, o.stdout, o.stderr)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, ".*.tmp")); left != nil {
		t.Errorf("left behind: %q", left)
	}
	c.wantRun(64, "--metrics-file", "", "job", "--", "true")
	c.wantRun(64, "--metrics-file")
}

func TestMetricsOfALoss(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "2s", "--metrics-file", "job.prom", "--on-lost", `echo "$LEASEHOLD_NAME: $LEASEHOLD_LOST" > lost`, "job", "--", "sh", "-c", "echo > held; exec sleep 60")
	c.read("held")
	c.evict("job")
	if code := j.code(); code != 75 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	c.wantMetrics("job.prom", "lost 1", "held 0", "exit_code 75")
	contains(t, c.file("lost"), "job: job: ", "evicted")
}
