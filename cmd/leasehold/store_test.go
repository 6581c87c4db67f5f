package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// everyCommand is a call of each command that opens the store.
var everyCommand = [][]string{
	{"run", "-n", "job", "--", "true"}, {"acquire", "-n", "job"}, {"renew", "job", "owner"}, {"release", "job", "owner"},
	{"ls"}, {"show", "job"}, {"top"}, {"evict", "--yes", "--owner", "x", "--reason", "x", "job"}, {"demo", "seckill", "--buyers", "1", "--processes", "1"},
}

// looks reports whether args are of a command that takes no lock.
func looks(args []string) bool {
	return slices.Contains([]string{"renew", "release", "ls", "show", "top", "evict"}, args[0])
}

// c.exec looks for the canary in each output.
func TestNoPasswordInAnyOutput(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	refuses := func(args ...string) {
		t.Helper()
		if o := c.call(args...); o.code != 64 {
			t.Errorf("%q on %q: exit code %d, want 64: %s", args, c.store, o.code, o.stderr)
		}
	}
	for i, url := range []string{
		"redis://user:" + canary + "@localhost:6379/db", "redlock://user:" + canary + "@h1,h2", "etcd://localhost?password=" + canary, "nosuch:" + canary, canary,
		"postgres://u:" + canary + "@%zz:port/?x", "user:" + canary + "@tcp(localhost)/db", "sqlite://u:" + canary + "@host/x.db",
		"sqlite:" + c.dir + "/x.db?password=" + canary, "memory:" + canary, ":" + canary, "host=h password=" + canary,
	} {
		for k, args := range everyCommand {
			for n, more := range [][]string{{"--json"}, {"-v"}} {
				given := append(append([]string{args[0]}, more...), args[1:]...)
				if args[0] == "demo" {
					given = append(args, more...)
				}
				if !testing.Short() || (i+k+n)%2 == 0 { // each command and each store has both ways, with both outputs
					c.store = url
					refuses(given...)
				}
				if !testing.Short() || (i+k+n)%2 == 1 {
					c.store = ""
					refuses(append([]string{"--store", url}, given...)...)
				}
			}
		}
	}
	c.store = "nosuch://user:" + canary + "@localhost"
	contains(t, c.want(64, "ls").stderr, `"nosuch"`, "sqlite:PATH", "redis://", "--store")
	c.store = "redis://user:" + canary + "@127.0.0.1:1"
	contains(t, c.want(69, "-v", "ls").stderr, "redis://***@127.0.0.1:1", "refused")
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"version", "-v"}, {"__complete", "show", ""}, {"completion", "bash"}} {
		c.want(0, args...)
	}
}

func TestMemoryStoreIsRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	contains(t, c.want(64, "--store", "memory:", "ls").stderr, "excludes no other process")
}

func TestForeignAndDamagedFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	noise := make([]byte, 20_000)
	rand.Read(noise)
	path := func(name string) string { return filepath.Join(c.dir, name) }
	write(t, path("text"), []byte("my diary\n"))
	write(t, path("noise"), noise)
	write(t, path("header"), append([]byte("SQLite format 3\x00"), noise...))
	c.exec("sqlite3", path("foreign"), "create table diary (day text); insert into diary values ('Monday')").wantCode(t, 0)
	c.store = "sqlite:" + path("cut")
	c.acquire("job")
	whole := read(t, path("cut"))
	for _, suffix := range []string{"-wal", "-shm"} {
		os.Remove(path("cut") + suffix)
	}
	write(t, path("cut"), whole[:len(whole)*2/3])

	for _, name := range []string{"text", "noise", "header", "foreign", "cut"} {
		before := read(t, path(name))
		c.store = "sqlite:" + path(name)
		for _, args := range everyCommand {
			o := c.call(args...)
			if o.code != 69 || !strings.Contains(o.stderr, path(name)) {
				t.Errorf("%s: %q: exit code %d, %q, want 69 and the path", name, args, o.code, o.stderr)
			}
		}
		if !bytes.Equal(before, read(t, path(name))) {
			t.Errorf("%s was changed", name)
		}
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestUnusableFoldersAre69(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	stores := map[string]string{
		"sqlite:/proc/leasehold/locks.db": "does not exist",
		"sqlite:/proc/locks.db":           "/proc/locks.db", // read-only even for root
		"sqlite:missing/locks.db":         "create it first",
	}
	for url, says := range stores {
		c.store = url
		for _, args := range everyCommand {
			o, says := c.call(args...), says
			if looks(args) {
				says = "no such file"
			}
			if o.code != 69 || !strings.Contains(o.stderr, says) || strings.Contains(o.stdout, "LEASEHOLD_OWNER") {
				t.Errorf("%s: %q: exit code %d, %q, want 69", url, args, o.code, o.stderr)
			}
		}
	}
}

// Whoever mistypes a path is told so, and finds no new file there.
func TestLookingCreatesNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	path := filepath.Join(c.dir, "locks.db")
	look := func(says string) {
		t.Helper()
		for _, args := range everyCommand {
			if looks(args) {
				contains(t, c.want(69, args...).stderr, path, says, "--store")
			}
		}
		if o := c.want(0, "__complete", "show", ""); !strings.HasPrefix(o.stdout, ":") {
			t.Errorf("completes with %q", o.stdout)
		}
	}
	look("no such file")
	c.missing("locks.db")
	write(t, path, nil)
	look("nothing was ever locked")
	if size := len(read(t, path)); size != 0 {
		t.Errorf("the empty file has %d bytes", size)
	}
	c.wantRun(0, "job", "--", "true") // makes a store of it
	c.want(0, "ls")

	c.store = ""
	c.want(0, "ls") // the user's own file is nobody's slip
}

// A store that turns read-only grants nothing, even though it was one before.
func TestReadOnlyStoreGrantsNothing(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root writes where it likes; see TestUnusableFoldersAre69")
	}
	c := newCLI(t)
	c.acquire("job")
	for _, path := range []string{filepath.Join(c.dir, "locks.db"), c.dir} {
		if err := os.Chmod(path, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(c.dir, 0o700) })
	if o := c.want(69, "acquire", "-n", "other"); o.stdout != "(exit 69)\n" {
		t.Errorf("granted: %q", o.stdout)
	}
}

func TestDefaultStore(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.acquire("job")
	folder := filepath.Join(c.dir, ".local/state/leasehold")
	info, err := os.Stat(folder)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v, want mode 0700", folder, info, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "leasehold.db")); err != nil {
		t.Error(err)
	}
	// --store goes before the environment, which goes before the default.
	c.store = "sqlite:" + filepath.Join(c.dir, "env.db")
	c.acquire("-n", "job")
	c.acquire("-n", "--store", "sqlite:flag.db", "job")
	c.want(1, "acquire", "-n", "--store", "sqlite:"+filepath.Join(c.dir, "flag.db"), "job")
	c.want(1, "acquire", "-n", "--store", "sqlite:", "job")
	contains(t, c.want(0, "-v", "ls").stderr, c.store)
}

// Even root cannot write to a file system that is mounted read-only, or full.
func TestFullAndReadOnlyDisksGrantNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if o := c.exec("unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=200k", "none", c.dir); o.code != 0 {
		t.Skipf("no mount namespaces here: %s", o.stderr)
	}
	o := c.exec("unshare", "-rm", "sh", "-c", `
mount -t tmpfs -o size=200k none . && cd "$PWD" || exit 99
refused() {
	[ $? = 69 ] && ! grep -v '^(exit 69)$' out || { echo "$1: exit code $?, $(cat out)"; exit 98; }
}
export LEASEHOLD_STORE=sqlite:locks.db
mkdir out.d && mount -t tmpfs none out.d && ln -s out.d/out out
leasehold acquire held >out || exit 97
dd if=/dev/zero of=fill bs=1k 2>/dev/null
leasehold acquire full >out; refused full
leasehold --store sqlite:new.db acquire full >out; refused new
rm fill
leasehold ls >out || exit 96
grep -q full out && { cat out; exit 95; }
grep -q held out || { cat out; exit 94; }
mount -o remount,ro . 
leasehold acquire readonly >out; refused readonly
leasehold ls >out; refused ls
leasehold run readonly -- touch out.d/started; refused run
[ ! -e out.d/started ]
`)
	o.wantCode(t, 0)
}

// A lease that is lost because nothing can be written names the disk.
func TestLossByAFullDiskNamesTheDisk(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if o := c.exec("unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=200k", "none", c.dir); o.code != 0 {
		t.Skipf("no mount namespaces here: %s", o.stderr)
	}
	o := c.exec("unshare", "-rm", "sh", "-c", `
mount -t tmpfs -o size=200k none . && cd "$PWD" || exit 99
export LEASEHOLD_STORE=sqlite:locks.db
exec leasehold run -v --ttl 3s x -- sh -c 'dd if=/dev/zero of=fill bs=1k 2>/dev/null; exec sleep 60'
`)
	o.wantCode(t, exitLost)
	contains(t, o.stderr, "a renewal of x has failed", "the last renewal of x failed", "the disk with the folder", c.dir)
}
