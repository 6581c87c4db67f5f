//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Who may not write a file and looks at it leaves nothing beside it, which its owner could not write.
func TestReaderLeavesNothingBesideTheFile(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	as := func(args ...string) outcome { return c.call(args...) }
	if os.Geteuid() == 0 {
		as = func(args ...string) outcome {
			return c.exec("setpriv", append([]string{"--bounding-set=-dac_override", binary}, args...)...)
		}
		if o := as("version"); o.code != 0 {
			t.Skipf("root cannot give up its rights here: %s", o.stderr)
		}
	}
	l := c.acquire("--ttl", "10m", "job")
	path := filepath.Join(c.dir, "locks.db")
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	for _, args := range append(everyCommand[:8:8], []string{"doctor"}, []string{"wait", "job"}) {
		if o := as(args...); o.code != 69 || !strings.Contains(o.stdout+o.stderr, path+": permission denied: ") {
			t.Errorf("%q: exit code %d: %s%s", args, o.code, o.stdout, o.stderr)
		}
		c.missing("locks.db-wal")
		c.missing("locks.db-shm")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	j := c.start("run", "job2", "--", "sh", "-c", "echo > up; exec sleep 60")
	eventually(t, "job", func() bool { _, err := os.Stat(filepath.Join(c.dir, "up")); return err == nil })
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	o := as("ls")
	o.wantCode(t, 0)
	contains(t, o.stdout, "job ", "job2", l.Owner[:8])
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	j.signal(syscall.SIGTERM)
	j.code()
	c.want(0, "release", "job", l.Owner)
}
