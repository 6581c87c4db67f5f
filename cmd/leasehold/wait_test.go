//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWaitUntilFree(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if o := c.call("wait", "job"); o.code != exitUnavailable { // nothing was ever locked there
		t.Errorf("exit code %d", o.code)
	}
	l := c.acquire("job")
	o := c.want(1, "wait", "-w", "0.3", "job")
	contains(t, o.stderr, "job is still held after")
	if o := c.call("wait", "-w", "0", "job"); o.code != 1 || o.stdout != "" {
		t.Errorf("exit code %d, %q", o.code, o.stdout)
	}
	j := c.start("wait", "job")
	quick := c.start("wait", "-w", "60", "job")
	for _, w := range []*job{j, quick} {
		select {
		case <-w.exited:
			t.Fatalf("ends although it is held: %s", w.errors())
		case <-time.After(700 * time.Millisecond):
		}
	}
	var v stateView
	c.want(0, "show", "--json", "job").json(t, &v)
	if len(v.Waiters) != 0 || len(v.Holders) != 1 || v.Holders[0].Token != l.Token {
		t.Errorf("with two that wait: %+v", v)
	}
	c.want(0, "release", "job", l.Owner)
	for _, w := range []*job{j, quick} {
		if code := w.code(); code != 0 || w.errors() != "" {
			t.Errorf("exit code %d: %s", code, w.errors())
		}
	}
	c.want(0, "show", "--json", "job").json(t, &v)
	if len(v.Holders) != 0 || v.Token != l.Token {
		t.Errorf("it was taken: %+v", v)
	}
	c.want(0, "wait", "-w", "1", "job")
	c.want(0, "wait", "-w", "0", "job")
	if o := c.want(0, "wait", "never"); o.stdout+o.stderr != "" {
		t.Errorf("it says %q%q", o.stdout, o.stderr)
	}
}

// It is through when a lease ends by itself, or a job's period.
func TestWaitUntilALeaseEnds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--ttl", "2s", "job")
	began := time.Now()
	c.want(0, "wait", "-w", "60", "job")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("a lease of 2 s: it took %v", took)
	}
	c.wantRun(0, "--at-least", "5s", "kept", "--", "true")
	c.want(1, "wait", "-w", "0", "kept")
	c.want(0, "wait", "kept")
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("job")
	for sig, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		j := c.start("wait", "job")
		time.Sleep(500 * time.Millisecond) // either way it ends by the signal
		j.signal(sig)
		if code := j.code(); code != want {
			t.Errorf("%v: exit code %d: %s", sig, code, j.errors())
		}
	}
	for _, line := range []string{"wait", "wait a b", "wait -w x job", "wait -w -1 job", "wait --nosuch job"} {
		c.want(64, strings.Fields(line)...)
	}
	c.store = "redis://" + nobody
	c.want(69, "wait", "job")
	silent := silence(t)
	c.store = "zookeeper://" + silent.addr
	began := time.Now()
	c.want(69, "wait", "-w", "1", "job")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a silent server: it took %v", took)
	}
}

// Under nohup, or in the background of a script, a signal that is ignored from the start ends nothing.
func TestIgnoredSignalsEndNoWait(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	l := c.acquire("job")
	j := c.startProgram("sh", "-c", `trap "" HUP INT; exec leasehold -v wait job`)
	j.says("store ")
	j.signal(syscall.SIGHUP)
	j.signal(syscall.SIGINT)
	c.want(0, "release", "job", l.Owner)
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

func TestListWatches(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	first := c.acquire("--note", "nightly", "job")
	watch := *c
	watch.binary = "/bin/sh"
	text := watch.start("-c", "exec leasehold ls --watch > watched")
	objects := watch.start("-c", "exec leasehold ls --watch --json j > objects")
	sees := func(file string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			eventually(t, p, func() bool {
				got, _ := os.ReadFile(filepath.Join(c.dir, file))
				return strings.Contains(string(got), p)
			})
		}
	}
	sees("watched", " job is held by "+first.Owner[:8]+", exclusive, token ", "(nightly on "+hostname()+")")
	sees("objects", `"note":"nightly"`)
	c.wait("patient")
	sees("watched", "(nightly on "+hostname()+"), 1 waiting")
	sees("objects", `"note":"patient"`)
	c.acquire("other")
	sees("watched", " other is held by ")
	c.want(0, "release", "job", first.Owner)
	sees("watched", "(patient on "+hostname()+")")
	var v stateView
	c.want(0, "show", "--json", "job").json(t, &v)
	c.want(0, "evict", "job", "--yes", "--owner", v.Holders[0].Owner, "--reason", "test")
	sees("watched", " job is free\n")
	sees("objects", `"holders":[],"waiters":[]}`)
	if strings.Contains(c.file("objects"), "other") || strings.Contains(c.file("watched"), first.Owner) {
		t.Errorf("%s\n%s", c.file("objects"), c.file("watched"))
	}
	c.obeys("watch", c.file("objects"), true)
	for _, j := range []*job{text, objects} {
		j.signal(syscall.SIGINT)
		if code := j.code(); code != 130 {
			t.Errorf("exit code %d: %s", code, j.errors())
		}
	}
	c.store = "redis://" + nobody
	c.want(69, "ls", "--watch")
}
