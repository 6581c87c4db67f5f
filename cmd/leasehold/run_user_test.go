//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asNobody starts a run as a user without rights, who can become root by "./become" and then cannot
// be killed by that user any more.
func (c *cli) asNobody(args ...string) *job {
	c.t.Helper()
	if os.Getuid() != 0 {
		c.t.Skip("only root can become another user")
	}
	const nobody = "65534"
	public := filepath.Join(c.dir, "leasehold")
	script := `chmod 755 .. && chmod 777 . && cp "$1" leasehold && chmod 755 leasehold && cp "$(command -v setpriv)" become && chmod 4755 become && setpriv --reuid ` + nobody + ` ./become --reuid 0 id -u`
	setUp := exec.Command("sh", "-c", script, "sh", binary)
	setUp.Dir = c.dir
	if out, err := setUp.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "0" {
		c.t.Skipf("no program can become root in %s: %v: %s", c.dir, err, out)
	}
	return c.startProgram("setpriv", append([]string{"--reuid", nobody, "--clear-groups", public}, args...)...)
}

// A hook that cannot be killed does not keep the run from ending. The same holds if only what it
// has started cannot be killed.
func TestHookThatCannotBeKilled(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]string{"itself": "exec ./become --reuid 0 sleep 60", "child": "./become --reuid 0 sleep 60; true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			j := c.asNobody("run", "--on-acquire", hook, "x", "--", "true")
			if code := j.code(); code != 0 {
				t.Errorf("exit code %d: %s", code, j.errors())
			}
			contains(t, j.errors(), "warning: --on-acquire has failed: it cannot be killed, and still runs after 15s")
		})
	}
}

// A process that the command leaves running as another user cannot be killed. The run reports it and
// waits.
func TestLeftAsAnotherUser(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.asNobody("run", "--grace", "1s", "x", "--", "sh", "-c", "./become --reuid 0 sh -c 'touch ready; while ! [ -e go ]; do sleep 0.1; done' & while ! [ -e ready ]; do sleep 0.02; done")
	j.says("cannot be ended: sh[")
	contains(t, j.errors(), "x is held until they end")
	c.wantRun(1, "-n", "x", "--", "true")
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := j.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

// A command that has become another user goes on after its lease is lost. The run says that another
// process may hold the name beside it.
func TestRunsOnAsAnotherUser(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.asNobody("run", "--grace", "500ms", "x", "--", "./become", "--reuid", "0", "sh", "-c", "trap '' TERM; echo > ready; while ! [ -e go ]; do sleep 0.1; done")
	c.read("ready")
	c.evict("x")
	j.says("The lease is over, and another process may hold x")
	contains(t, j.errors(), "cannot be ended: sh[")
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := j.code(); code != 75 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	if n := strings.Count(j.errors(), "cannot be ended"); n > 2 {
		t.Errorf("said %d times: %s", n, j.errors())
	}
}

// A leader that steps down for a preferred candidate, but cannot end its command, still holds the
// lease. The run reports that, and again once the lease is over.
func TestOutrankedAsAnotherUser(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.asNobody("lead", "--grace", "500ms", "--preference", "1", "x", "--", "./become", "--reuid", "0", "sh", "-c", "trap '' TERM; echo > ready; while ! [ -e go ]; do sleep 0.1; done; echo > gone")
	c.read("ready")
	c.waits(c.start("lead", "-v", "--preference", "2", "x", "--", "sleep", "60"))
	j.says("cannot be ended: sh[")
	contains(t, j.errors(), "x is held until they end")
	c.evict("x")
	j.says("The lease is over, and another process may hold x")
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.read("gone") // before its folder is removed, where it looks for go
}

// heldUntil is a tenure that ends at a time.
type heldUntil struct {
	ctx   context.Context
	until time.Time
}

func (h heldUntil) Context() context.Context { return h.ctx }
func (h heldUntil) Deadline() time.Time      { return h.until }

// A lease that is not renewed ends at its time, even if processes that cannot be ended are left.
func TestLeftAsAnotherUserUnderAFixedLease(t *testing.T) {
	t.Parallel()
	var says bytes.Buffer
	c := newChild(&app{stderr: &says})
	c.name, c.fixed = "x", true
	until := time.Now().AddDate(0, 0, 1)
	c.tellRefused(heldUntil{t.Context(), until}, "sh[7]")
	contains(t, says.String(), "cannot be ended: sh[7]", "If they still run at "+until.Format(time.DateTime)+", another process may hold x from then on")
}
