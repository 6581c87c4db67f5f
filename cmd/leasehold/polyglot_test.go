package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// Each of the three languages sells, and together no more than there is; without a lock they do.
func TestPolyglot(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.env = []string{"TMPDIR=" + c.dir}
	var r struct {
		Runs map[string]struct {
			Sold           map[string]int
			Left, Oversold int
			Broken         []string
		}
	}
	c.want(0, "demo", "polyglot", "--stock", "12", "--json").json(t, &r)
	under, without := r.Runs["lock"], r.Runs["none"]
	sold := 0
	for _, language := range []string{"go", "python", "shell"} {
		if under.Sold[language] == 0 {
			t.Errorf("nobody sold in %s: %v", language, under.Sold)
		}
		sold += under.Sold[language]
	}
	if sold != 12 || under.Left != 0 || len(under.Broken) > 0 {
		t.Errorf("under the lock: %+v", under)
	}
	if without.Oversold == 0 || len(without.Broken) == 0 {
		t.Errorf("without a lock: %+v, want it oversold", without)
	}
	c.wantNoFiles()
}

func TestPolyglotTable(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env = []string{"TMPDIR=" + c.dir}
	contains(t, c.want(0, "demo", "polyglot", "--stock", "6").stdout, "6 pieces", "WITHOUT LOCK", "UNDER LOCK", "sold in python", "oversold", "total time")
	contains(t, c.want(64, "demo", "polyglot", "--stock", "2").stderr, "--stock 2", "See: leasehold demo polyglot --help")
}

func TestPolyglotTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"python3", "curl"} {
		dir := t.TempDir()
		for _, name := range []string{"python3", "curl", "sh"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatalf("%v: scripts/install-tools installs it", err)
			}
			if name == missing {
				continue
			}
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		c := newCLI(t)
		c.env = []string{"PATH=" + dir}
		o := c.want(69, "demo", "polyglot")
		if contains(t, o.stderr, missing+" is not in PATH", "apt install "+missing); strings.Count(strings.TrimSpace(o.stderr), "\n") > 0 {
			t.Errorf("it says more than one line: %q", o.stderr)
		}
	}
}

// The other sellers wait for the one in Python, which never gets ready.
func TestSellersGetNoPasswordAndEndWithAKilledDemo(t *testing.T) {
	t.Parallel()
	c, tools := newCLI(t), t.TempDir()
	python := filepath.Join(tools, "python3")
	write(t, python, []byte("#!/bin/sh\nexec sleep 600\n"))
	if err := os.Chmod(python, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "demo", "polyglot")
	cmd.Env = append(os.Environ(), "TMPDIR="+c.dir, "PATH="+tools+":"+os.Getenv("PATH"), "LEASEHOLD_STORE="+c.store, "LEASEHOLD_PASSWORD="+canary)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for pid := range c.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // or it has ended
		}
	})
	claimtest.Eventually(t, "the other sellers to be ready", func() bool {
		ready, _ := filepath.Glob(filepath.Join(c.dir, "*", "ready.*")) // the pattern is right
		return len(ready) == 2
	})
	for pid, env := range c.processes() {
		if pid != cmd.Process.Pid && (strings.Contains(env, canary) || strings.Contains(env, c.store)) {
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			t.Errorf("%s has the store or its password in its environment", exe)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	c.untilProcesses(0)
}
