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
		want := exitDenied
		if args[0] == "doctor" { // which has one code for all that it finds
			want = exitUnavailable
		}
		if o := as(args...); o.code != want || !strings.Contains(o.stdout+o.stderr, path+": permission denied: ") {
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

// The users of a group exclude each other in a file that docs/engines/sqlite.md has them make.
func TestUsersOfAGroupShareAFile(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	c := newCLI(t)
	if err := os.Chmod(filepath.Dir(c.dir), 0o755); err != nil { // of TempDir, which others may not enter
		t.Fatal(err)
	}
	copied := filepath.Join(c.dir, "leasehold")
	if err := os.Link(binary, copied); err != nil {
		t.Fatal(err)
	}
	const group = "54320"
	recipe := strings.NewReplacer("-g locks", "-g "+group, "/var/lib/locks", filepath.Join(c.dir, "shared"))
	page, err := os.ReadFile("../../docs/engines/sqlite.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "<!-- users of a group -->\n```sh\n")
	if !found {
		t.Fatal("the page has no recipe")
	}
	text, _, _ = strings.Cut(text, "```")
	c.exec("sh", "-ec", recipe.Replace(text)).wantCode(t, 0)
	c.store = "sqlite:" + filepath.Join(c.dir, "shared", "locks.db")
	as := func(user string, args ...string) outcome {
		c.t.Helper()
		return c.exec("setpriv", append([]string{"--reuid=" + user, "--regid=" + user, "--groups=" + group, "--", copied}, args...)...)
	}
	if o := as("54321", "version"); o.code != 0 {
		t.Skipf("root cannot be another user here: %s", o.stderr)
	}
	const one, other, stranger = "54321", "54322", "54323"
	for range 2 {
		l := as(one, "acquire", "--json", "--ttl", "10m", "job")
		l.wantCode(t, 0)
		var lease leaseView
		l.json(t, &lease)
		as(other, "run", "-n", "job", "--", "true").wantCode(t, 1)
		as(other, "run", "-n", "another", "--", "true").wantCode(t, 0)
		as(other, "release", "job", lease.Owner).wantCode(t, 0)
		as(other, "run", "-n", "job", "--", "true").wantCode(t, 0)
	}
	if o := c.exec("setpriv", "--reuid="+stranger, "--regid="+stranger, "--clear-groups", "--", copied, "run", "-n", "job", "--", "true"); o.code != exitDenied {
		t.Errorf("who is not in the group: exit code %d: %s", o.code, o.stderr)
	}
}
