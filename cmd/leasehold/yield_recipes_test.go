//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// yieldRecipe is the block of docs/yield.md below a comment.
func yieldRecipe(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/yield.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?ms)^<!-- " + regexp.QuoteMeta(name) + " -->\n```sh\n(.*?)^```$").FindSubmatch(page)
	if m == nil {
		t.Fatalf("no recipe %q", name)
	}
	return string(m[1])
}

// The batch gives way in the middle, goes on later, and does each step once. Its step 500 lasts
// until it is asked to stop.
func TestBatchThatGivesWay(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const work = `echo "$n" >> done; while [ "$n" = 500 ] && [ -z "$stop" ]; do sleep 0.02; done`
	batch := strings.NewReplacer(`./work "$n"`, work, "10000", "1000").Replace(yieldRecipe(t, "batch.sh"))
	write(t, filepath.Join(c.dir, "batch.sh"), []byte(batch))
	write(t, filepath.Join(c.dir, "loop"), []byte(yieldRecipe(t, "run")))
	j := c.startProgram("sh", "loop")
	eventually(t, "step 500", func() bool { return strings.HasSuffix(c.file("done"), "\n500\n") })
	if o := c.call("run", "nightly", "--", "cat", "next"); o.stdout != "501\n" {
		t.Errorf("another runs at step %q: %s", o.stdout, o.stderr)
	}
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	steps := strings.Fields(c.file("done"))
	for i, step := range steps {
		if step != strconv.Itoa(i) {
			t.Fatalf("step %s after %d others", step, i)
		}
	}
	if len(steps) != 1000 {
		t.Errorf("%d steps", len(steps))
	}
}

// A batch whose step fails, or whose number was lost, is not done.
func TestBatchThatFails(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	write(t, filepath.Join(c.dir, "batch.sh"), []byte(yieldRecipe(t, "batch.sh")))
	for program, next := range map[string]string{"#!/bin/sh\n": "", "#!/bin/sh\nexit 3\n": "9998\n"} {
		write(t, filepath.Join(c.dir, "work"), []byte(program))
		write(t, filepath.Join(c.dir, "next"), []byte(next))
		if err := os.Chmod(filepath.Join(c.dir, "work"), 0o700); err != nil {
			t.Fatal(err)
		}
		if o := c.exec("sh", "batch.sh"); o.code == 0 || c.file("next") != next {
			t.Errorf("after %q: exit code 0, or another step, %q: %s", next, c.file("next"), o.stderr)
		}
	}
}

// A batch that an operator removes from the queue does not queue again.
func TestBatchThatIsRemovedEnds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serveMemory()
	c.acquire("--ttl", "10m", "nightly")
	write(t, filepath.Join(c.dir, "loop"), []byte(yieldRecipe(t, "run")))
	j := c.startProgram("sh", "loop")
	c.sendAway("nightly", "wrong branch")
	if code := j.code(); code != exitBusy {
		t.Errorf("exit code %d, want %d: %s", code, exitBusy, j.errors())
	}
}

// The new version takes over, and the old one when the new one is gone.
func TestDeploymentThatPrefersItself(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	write(t, filepath.Join(c.dir, "scheduler"), []byte("#!/bin/sh\necho $BUILD $LEASEHOLD_TOKEN >> terms\nexec sleep 60\n"))
	if err := os.Chmod(filepath.Join(c.dir, "scheduler"), 0o700); err != nil {
		t.Fatal(err)
	}
	line := "exec " + yieldRecipe(t, "lead")
	c.env = []string{"BUILD=41", "STORE=" + c.store}
	c.startProgram("sh", "-c", line)
	c.terms(1)
	c.env = []string{"BUILD=42", "STORE=" + c.store}
	next := c.startProgram("sh", "-c", line)
	c.terms(2)
	next.signal(syscall.SIGTERM)
	if who := strings.Join(c.terms(3), " "); who != "41 42 41" {
		t.Errorf("led: %s", who)
	}
}
