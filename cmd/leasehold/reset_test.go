//go:build linux

package main

import (
	"strings"
	"testing"
)

// A job that is done can be let run again by hand; one that runs is left alone.
func TestResetLetsADoneJobRunAgain(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	job := []string{"run", "--once-per", "1h", "job", "--", "sh", "-c", "echo >> ran; exit 3"}
	contains(t, c.call(append([]string{"reset"}, "--store", "sqlite:new.db", "job")...).stderr, "no such file")
	if o := c.call(job...); o.code != 3 {
		t.Fatalf("exit code %d: %s", o.code, o.stderr)
	}
	if o := c.want(1, job...); strings.Contains(o.stderr, "held by") || strings.Contains(o.stderr, "--wait") {
		t.Errorf("a job that is done is told as one that runs: %s", o.stderr)
	} else {
		contains(t, o.stderr, "kept after", "which is done, for ", "reset job")
	}
	contains(t, c.want(0, "reset", "job").stdout, "reset job: it is free")
	contains(t, c.want(0, "reset", "job").stdout, "job was free")
	if o := c.call(job...); o.code != 3 {
		t.Errorf("after a reset: exit code %d: %s", o.code, o.stderr)
	}
	if ran := strings.Count(string(read(t, c.dir+"/ran")), "\n"); ran != 2 {
		t.Errorf("ran %d times, want 2", ran)
	}
	contains(t, c.want(0, "reset", "--json", "job").stdout, `"reset": true`)

	l := c.acquire("job")
	contains(t, c.want(1, "reset", "job").stderr, "its job runs, or was killed", "leasehold evict job --owner "+l.Owner[:8])
	c.want(0, "release", "job", l.Owner)
	c.want(64, "reset")
	c.want(64, "reset", "")
}

// A job that may be retried leaves its name free when it fails, and keeps it when it does not.
func TestRetryOnFailure(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	job := func(code int, script string) {
		t.Helper()
		if o := c.call("run", "--once-per", "1h", "--retry-on-failure", "job", "--", "sh", "-c", script); o.code != code {
			t.Errorf("%s: exit code %d, want %d: %s", script, o.code, code, o.stderr)
		}
	}
	job(3, "exit 3")
	job(137, "kill -9 $$")
	contains(t, c.want(0, "show", "job").stdout, "job is free")
	job(0, "true")
	job(1, "true")
	c.want(64, "run", "--retry-on-failure", "x", "--", "true")
}
