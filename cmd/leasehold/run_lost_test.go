//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/fence"
	_ "modernc.org/sqlite"
)

// busyTree is a child with two grandchildren, one in a session of its own, each of which
// logs the time in nanoseconds for as long as it lives.
const busyTree = `work='%[1]s
	echo $$ > pid-$0; while :; do date +%%s%%N >> log-$0; sleep 0.05; done'
	sh -c "$work" grandchild &
	setsid sh -c "$work" session &
	exec sh -c "$work" child`

var members = []string{"child", "grandchild", "session"}

// tree starts a run whose command is a busyTree and waits until all of it works.
func (c *cli) tree(prologue string, flags ...string) *job {
	c.t.Helper()
	j := c.start(append(append([]string{"run"}, flags...), "x", "--", "sh", "-c", fmt.Sprintf(busyTree, prologue))...)
	for _, m := range members {
		c.read("log-" + m)
	}
	return j
}

// alive tells who of the tree is.
func (c *cli) alive() (who []string) {
	c.t.Helper()
	for _, m := range members {
		if syscall.Kill(c.readInt("pid-"+m), 0) == nil {
			who = append(who, m)
		}
	}
	return who
}

// lastSign is the latest time that anybody of the tree has logged.
func (c *cli) lastSign() (who string, ns int) {
	c.t.Helper()
	for _, m := range members {
		for _, line := range strings.Fields(c.read("log-" + m)) {
			if n, err := strconv.Atoi(line); err == nil && n > ns {
				who, ns = m, n
			}
		}
	}
	return who, ns
}

// successor lets a second run in, which waits for 20 s, and checks that it came only after
// the last sign of life of the tree. Nobody of the tree may live after it either.
func (c *cli) successor() {
	c.t.Helper()
	c.wantRun(0, "-w", "20", "x", "--", "sh", "-c", "date +%s%N > second")
	second := c.readInt("second")
	if who := c.alive(); who != nil {
		c.t.Errorf("alive: %q", who)
	}
	if who, last := c.lastSign(); last >= second {
		c.t.Errorf("the %s worked %v after the second got in", who, time.Duration(last-second))
	}
}

// deaf is the prologue of a tree that ignores SIGTERM.
const deaf = `trap "" TERM;`

func TestNothingOutlivesAKilledRun(t *testing.T) {
	t.Parallel()
	for name, prologue := range map[string]string{"obedient": "", "deaf": deaf} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j := c.tree(prologue, "--ttl", "10s")
			j.signal(syscall.SIGKILL)
			c.successor()
		})
	}
}

// dead waits until the tree is.
func (c *cli) dead(within time.Duration) {
	c.t.Helper()
	began := time.Now()
	eventually(c.t, "end of the tree", func() bool { return c.alive() == nil })
	if took := time.Since(began); took > within {
		c.t.Errorf("the command lived for %v, want at most %v", took, within)
	}
}

// TestKilledRunDoesNotWaitForTheDeadline: nobody will renew, so there is nothing to wait for.
func TestKilledRunDoesNotWaitForTheDeadline(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.tree("", "--ttl", "2m")
	j.signal(syscall.SIGKILL)
	c.dead(30 * time.Second)
}

// TestCommandDiesWithBothItsGuards: run and guardian are killed at once. Grandchildren
// are then out of reach, the command is not.
func TestCommandDiesWithBothItsGuards(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
	child := c.readInt("pid")
	guardian := parent(t, child)
	j.stop() // so that it cannot act in between
	syscall.Kill(guardian, syscall.SIGKILL)
	eventually(t, "end of the command", func() bool { return zombie(child) })
}

// zombie reports whether a process is dead, waited for or not.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestNothingOutlivesAStoppedRun(t *testing.T) {
	t.Parallel()
	for name, prologue := range map[string]string{"obedient": "", "deaf": deaf} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j := c.tree(prologue, "--ttl", "10s")
			j.stop()
			c.successor()
			j.signal(syscall.SIGCONT)
			if code := j.code(); code != exitLost {
				t.Errorf("exit code %d, want %d: %s", code, exitLost, j.errors())
			}
			contains(t, j.errors(), "leasehold: ", "lost")
		})
	}
}

// parent returns the parent of a process; a command's is its guardian.
func parent(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	var ppid int
	if _, err := fmt.Sscanf(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), "%s %d", &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

func TestNothingOutlivesAKilledGuardian(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.tree(deaf, "--ttl", "2m")
	syscall.Kill(parent(t, c.readInt("pid-child")), syscall.SIGKILL)
	if code := j.code(); code != exitInternal {
		t.Errorf("exit code %d, want %d", code, exitInternal)
	}
	contains(t, j.errors(), "guardian")
	c.successor() // released at once
}

// TestBackgroundIsEndedBeforeTheRelease: what the command leaves behind holds no lock.
func TestBackgroundIsEndedBeforeTheRelease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	tree := fmt.Sprintf(busyTree, deaf)
	c.wantRun(8, "--grace", "0.3", "x", "--", "sh", "-c", strings.Replace(tree, `exec sh -c "$work" child`,
		"echo $$ > pid-child; date +%s%N >> log-child; while ! [ -s log-session ] || ! [ -s log-grandchild ]; do sleep 0.02; done; exit 8", 1))
	c.successor()
}

func TestEvictionEndsTheCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.tree("", "--ttl", "9s") // of which a busy machine does not take all, and a third of which it goes on
	var state stateView
	c.want(0, "show", "--json", "x").json(t, &state)
	c.want(0, "evict", "x", "--owner", state.Holders[0].Owner, "--reason", "maintenance", "--yes")
	if code := j.code(); code != exitLost {
		t.Errorf("exit code %d, want %d", code, exitLost)
	}
	contains(t, j.errors(), "lost", "was ended")
	if who := c.alive(); who != nil {
		t.Errorf("alive: %q", who)
	}
}

func TestLostExitCode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.hold("x", "--ttl", "5s", "--lost-exit-code", "42")
	j.stop()
	c.wantRun(0, "-w", "40", "x", "--", "true")
	j.signal(syscall.SIGCONT)
	if code := j.code(); code != 42 {
		t.Errorf("exit code %d, want 42", code)
	}
}

// TestUnreachableStoreEndsTheCommandInTime: somebody keeps the store's file locked, so
// that no renewal gets through.
func TestUnreachableStoreEndsTheCommandInTime(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const ttl = 20 * time.Second // 3 % of which are to spare: the core's and the guardian's
	j := c.tree(deaf, "--ttl", ttl.String())
	unlock := c.lockStore()
	c.dead(ttl) // the lease was renewed before the file was locked
	unlock()
	if code := j.code(); code != exitLost {
		t.Errorf("exit code %d, want %d: %s", code, exitLost, j.errors())
	}
}

// lockStore keeps everybody from writing to the store's file.
func (c *cli) lockStore() (unlock func(changes ...string)) {
	c.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(c.dir, "locks.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if _, err := conn.ExecContext(c.t.Context(), "BEGIN IMMEDIATE"); err != nil {
		c.t.Fatal(err)
	}
	return func(changes ...string) {
		c.t.Helper()
		for _, statement := range append(changes, "COMMIT") {
			if _, err := conn.ExecContext(c.t.Context(), statement); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// init makes this test binary a command that writes with its token, if it is told to.
func init() {
	out := os.Getenv("TEST_GUARDED_WRITE")
	if out == "" {
		return
	}
	answer := "accepted"
	if err := guardedWrite("resource.db"); errors.Is(err, fence.ErrStale) {
		answer = "stale"
	} else if err != nil {
		answer = err.Error()
	}
	if err := os.WriteFile(out, []byte(answer+"\n"), 0o600); err != nil {
		panic(err)
	}
	os.Exit(0)
}

func guardedWrite(path string) error {
	ctx := context.Background()
	token, err := strconv.ParseUint(os.Getenv("LEASEHOLD_TOKEN"), 10, 64)
	if err != nil {
		return err
	}
	guard, err := fence.NewSQL(fence.SQLite, "")
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := guard.Migrate(ctx, db); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := guard.Check(ctx, tx, fence.LeaseOf(os.Getenv("LEASEHOLD_NAME"), token, os.Getenv("LEASEHOLD_OWNER"))); err != nil {
		return err
	}
	return tx.Commit()
}

// TestFenceRefusesAPausedHolder: run, guardian and command are all stopped, as by a
// suspended machine. The lock then cannot keep a second out; the token can.
func TestFenceRefusesAPausedHolder(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	helper, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write := "TEST_GUARDED_WRITE=$1 " + helper
	j := c.start("run", "--ttl", "5s", "x", "--", "sh", "-c",
		"set -- before; "+write+"; echo $$ > pid; while ! [ -e go ]; do sleep 0.02; done; set -- after; "+write)
	if got := c.read("before"); got != "accepted" {
		t.Fatalf("the first's write: %s", got)
	}
	child := c.readInt("pid")
	guardian := parent(t, child)
	stopped := []int{j.cmd.Process.Pid, guardian, -child}
	for _, pid := range stopped {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	t.Cleanup(func() {
		for _, pid := range stopped {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	c.wantRun(0, "-w", "40", "x", "--", "sh", "-c", "set -- second; "+write)
	if got := c.read("second"); got != "accepted" {
		t.Fatalf("the second's write: %s", got)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(-child, syscall.SIGCONT)
	if got := c.read("after"); got != "stale" {
		t.Errorf("the first's write after the second's: %s, want stale", got)
	}
	syscall.Kill(guardian, syscall.SIGCONT)
	j.signal(syscall.SIGCONT)
	if code := j.code(); code != exitLost {
		t.Errorf("exit code %d, want %d: %s", code, exitLost, j.errors())
	}
}

// What could not be released is said once, by the one who says it.
func TestVerdictNamesTheProgramOnce(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	c := newChild(&app{stderr: &stderr})
	err := c.verdict(ending{released: errors.New("leasehold: release \"x\": no answer"), left: time.Minute})
	if want := "leasehold: release \"x\": no answer\nIt ends by itself within 1m0s\n"; err != nil || stderr.String() != want {
		t.Errorf("%v, %q; want %q", err, stderr.String(), want)
	}
}
