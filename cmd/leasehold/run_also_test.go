//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRunHoldsAllItsNames(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	o := c.wantRun(0, "--also", "c", "b", "--also", "a", "--also", "b", "--", "sh", "-c",
		`printf '%s\n' "$LEASEHOLD_NAME" "$LEASEHOLD_TOKEN" "$LEASEHOLD_TOKENS" "$LEASEHOLD_HELD"; leasehold ls --json > ls; for n in a b c; do leasehold run -n $n -- true; echo $?; done`)
	v := strings.Split(strings.TrimSpace(o.stdout), "\n")
	if len(v) != 9 || v[0] != "b" || v[2] != v[1]+" b" || !strings.HasSuffix(v[3], " a") || !strings.HasSuffix(v[4], " c") || len(strings.Fields(v[5])) != 3 {
		t.Fatalf("environment: %q", v)
	}
	for _, code := range v[6:] {
		if code != "64" { // the outer run's owners are all known: it could only wait for itself
			t.Errorf("a nested run of a name that is held: exit code %s", code)
		}
	}
	listed, err := os.ReadFile(filepath.Join(c.dir, "ls"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		contains(t, string(listed), fmt.Sprintf(`"name": %q`, name))
		c.wantRun(0, "-n", name, "--", "true") // free again
	}
	c.wantRun(64, "--also", "bad\nname", "x", "--", "true")
}

func TestRunHoldsAllOrNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	holder := c.hold("b")
	contains(t, c.wantRun(1, "-n", "--also", "b", "a", "--", "sh", "-c", "echo > ran").stderr, `"b" is busy`)
	c.wantRun(1, "-w", "3", "--also", "a", "--also", "c", "b", "--", "sh", "-c", "echo > ran")
	for _, name := range []string{"a", "c"} {
		c.wantRun(0, "-n", name, "--", "true")
	}
	c.missing("ran")
	// Against each other, in opposite orders.
	first, second := c.start("run", "--also", "b", "a", "--", "sh", "-c", "echo > first"), c.start("run", "--also", "a", "b", "--", "sh", "-c", "echo > second")
	holder.signal(syscall.SIGTERM)
	for _, j := range []*job{first, second} {
		if code := j.code(); code != 0 {
			t.Errorf("exit code %d: %s", code, j.errors())
		}
	}
	c.read("first")
	c.read("second")
}

func TestCommandEndsWithAnyOfItsNames(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	j := c.start("run", "--ttl", "2s", "--also", "b", "a", "--", "sh", "-c", "echo > held; exec sleep 60")
	c.read("held")
	c.evict("b")
	if code := j.code(); code != 75 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
	c.wantRun(0, "-w", "10", "--also", "b", "a", "--", "true")
}

// evict ends the lease of whoever holds name.
func (c *cli) evict(name string) {
	c.t.Helper()
	var state stateView
	c.want(0, "show", "--json", name).json(c.t, &state)
	if len(state.Holders) != 1 {
		c.t.Fatalf("%s has %d holders", name, len(state.Holders))
	}
	c.want(0, "evict", "--yes", "--owner", state.Holders[0].Owner, "--reason", "test", name)
}
