// Package doctor_test has "leasehold doctor" look at real servers, in a good and in a bad state.
package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/e2e/program"
)

var binary string

func TestMain(m *testing.M) { os.Exit(program.Main(m, &binary)) }

// canary is a password that no output may have.
const canary = "s3cr3t-canary"

// A report is what "leasehold doctor --json" prints.
type report struct {
	t        *testing.T
	code     int
	took     time.Duration
	text     string
	Store    string
	From     string
	Level    string
	Findings []finding
}

type finding struct{ About, Where, Level, Text, Advice string }

// callBound ends a doctor that hangs.
const callBound = time.Minute

// run calls the command with a store, and an environment of its own.
func run(t *testing.T, store string, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=", "XDG_STATE_HOME=", "LEASEHOLD_STORE="+store)
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%q: %v\n%s", args, err, errs.String())
	}
	if strings.Contains(out.String()+errs.String(), canary) {
		t.Errorf("%q shows the password:\n%s%s", args, out.String(), errs.String())
	}
	if errs.Len() > 0 {
		t.Logf("%q: %s", args, errs.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// examine has the doctor look at store.
func examine(t *testing.T, store string) *report {
	t.Helper()
	r := &report{t: t}
	began := time.Now()
	r.text, r.code = run(t, store, "doctor", "--json")
	r.took = time.Since(began)
	if err := json.Unmarshal([]byte(r.text), r); err != nil {
		t.Fatalf("no report: %v in %q", err, r.text)
	}
	if r.From != "LEASEHOLD_STORE" {
		t.Errorf("the store is said to come from %q", r.From)
	}
	if worst := r.worst(""); r.Level != worst {
		t.Errorf("the report calls itself %q, its worst finding is %q:\n%s", r.Level, worst, r.text)
	}
	want := map[string]int{"ok": 0, "warning": 1, "error": 69}[r.Level]
	if r.code != want {
		t.Errorf("exit code %d with %q at worst", r.code, r.Level)
	}
	return r
}

// has checks that there is a finding of that level about something, with all the parts.
func (r *report) has(about, level string, parts ...string) {
	r.t.Helper()
	if !r.says(about, level, parts...) {
		r.t.Errorf("no finding of %s, %s, with %q in:\n%s", about, level, parts, r.text)
	}
}

// says reports whether there is one.
func (r *report) says(about, level string, parts ...string) bool {
	return slices.ContainsFunc(r.Findings, func(f finding) bool {
		all := f.Level == level && f.About == about
		for _, p := range parts {
			all = all && strings.Contains(f.Where+": "+f.Text+"; "+f.Advice, p)
		}
		return all
	})
}

// fine checks that the worst is level, and that these things are fine. How long the store takes to answer
// is this machine's: a busy one is warned of.
func (r *report) fine(level string, abouts ...string) {
	r.t.Helper()
	if worst := r.worst(trip); worst != level {
		r.t.Errorf("the worst is %q, want %q:\n%s", worst, level, r.text)
	}
	for _, about := range append(abouts, "store", "reach", "promises", "version", "rights") {
		r.has(about, "ok")
	}
	r.timed()
}

// looked checks that something was found of each of these, and the time that the store takes to answer.
func (r *report) looked(abouts ...string) {
	r.t.Helper()
	for _, about := range abouts {
		if !slices.ContainsFunc(r.Findings, func(f finding) bool { return f.About == about }) {
			r.t.Errorf("nothing of %s in:\n%s", about, r.text)
		}
	}
	r.timed()
}

// worst is the worst level of all findings but those about something.
func (r *report) worst(but string) string {
	levels := []string{"ok", "warning", "error"}
	worst := 0
	for _, f := range r.Findings {
		if f.About != but {
			worst = max(worst, slices.Index(levels, f.Level))
		}
	}
	return levels[worst]
}

const trip = "round trip"

// timed checks that it was found how long the store takes to answer.
func (r *report) timed() {
	r.t.Helper()
	for _, f := range r.Findings {
		if f.About == trip && strings.HasPrefix(f.Text, "median ") {
			return
		}
	}
	r.t.Errorf("no round trip was timed:\n%s", r.text)
}

// away checks that a store which does not answer is said to be so, within the time that the help
// text promises and what a busy machine adds.
func away(t *testing.T, store string) {
	t.Helper()
	r := examine(t, store)
	r.has("reach", "error")
	if r.took > 20*time.Second {
		t.Errorf("it took %v", r.took)
	}
}

// unsupported is the exit code of "leasehold ls" on memcached.
const unsupported = 64

// held takes the lock job, and returns what checks that nobody has disturbed it.
func held(t *testing.T, store string) (still func()) {
	t.Helper()
	out, code := run(t, store, "acquire", "--json", "--ttl", "5m", "job")
	var lease struct{ Owner string }
	if err := json.Unmarshal([]byte(out), &lease); err != nil || code != 0 {
		t.Fatalf("acquire: exit code %d, %v", code, err)
	}
	return func() {
		t.Helper()
		if out, code := run(t, store, "ls"); code != unsupported && !strings.Contains(out, "job") || strings.Contains(out, "doctor") {
			t.Errorf("what is held after the doctor was there: %s", out)
		}
		if out, code := run(t, store, "release", "job", lease.Owner); code != 0 {
			t.Errorf("release after the doctor was there: exit code %d, %s", code, out)
		}
	}
}

// absent checks that text, all that a store has, tells of no doctor.
func absent(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, "doctor") {
		t.Errorf("the doctor has left something behind:\n%s", text)
	}
}
