package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
)

// shells are those that a script may be written for.
var shells = []string{"sh", "dash", "bash", "zsh"}

var installShells = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("../../scripts/install-tools", "dash", "zsh").CombinedOutput()
})

func needShells(t *testing.T) {
	t.Helper()
	if out, err := installShells(); err != nil {
		t.Fatalf("scripts/install-tools: %v\n%s", err, out)
	}
}

// wantStop runs script in every shell, with and without set -e, and checks its exit code
// and that it has not come to its end.
func (c *cli) wantStop(what string, code int, script string) {
	c.t.Helper()
	for _, shell := range shells {
		for _, set := range []string{"", "set -e\n"} {
			o := c.exec(shell, "-c", set+script+"\necho WENT ON")
			if o.code != code || o.stdout != "" {
				c.t.Errorf("%s: %s -c %q: exit code %d, want %d; stdout %q, stderr %q", what, shell, set+script, o.code, code, o.stdout, o.stderr)
			}
		}
	}
}

// A script that has no lock must not go on.
func TestScriptStopsWithoutTheLock(t *testing.T) {
	t.Parallel()
	needShells(t)
	c := newCLI(t)
	c.acquire("--ttl", "1h", "deploy")
	for _, f := range []struct {
		command string
		code    int
	}{
		{"acquire -n deploy", 1},
		{"--store redis://127.0.0.1:1 acquire deploy", 69},
		{"--store sqlite:/nonexistent/x.db acquire deploy", 69},
		{"--store nosuch: acquire deploy", 64},
		{"acquire", 64},
		{`acquire ""`, 64},
		{"acquire a b", 64},
		{"acquire --ttl 0 deploy", 64},
		{"acquire --nosuch deploy", 64},
		{"--nosuch acquire deploy", 64},
		{"acqire deploy", 64},
		{"renew deploy nobody", 75},
		{"renew deploy", 64},
		{"acquire deploy & until leasehold show deploy | grep -q WAITER; do sleep 0.1; done; kill $!; wait $!", 143},
		{"acquire deploy & until leasehold show deploy | grep -q WAITER; do sleep 0.1; done; kill -HUP $!; wait $!", 129},
		{"acquire deploy & until leasehold show deploy | grep -q WAITER; do sleep 0.1; done; kill -QUIT $!; wait $!", 131},
		{"acquire deploy & until leasehold show deploy | grep -q WAITER; do sleep 0.1; done; kill -KILL $!; wait $!", 137},
	} {
		c.wantStop("two lines", f.code, "lease=$(leasehold "+f.command+") || exit\neval \"$lease\"")
		if strings.Contains(f.command, "kill") {
			continue // wait's status is that of the subshell, and what it prints may come late
		}
		c.wantStop("eval", f.code, `eval "$(leasehold `+f.command+`)" || exit`)
	}
	// eval alone ends a script with set -e.
	for _, shell := range shells {
		if o := c.exec(shell, "-c", "set -e\neval \"$(leasehold acquire -n deploy)\"\necho WENT ON"); o.code != 1 || o.stdout != "" {
			t.Errorf("%s: exit code %d, %q", shell, o.code, o.stdout)
		}
	}
}

// recipes are the parts of help texts and documents that a script evaluates, by where they
// stand.
func recipes(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, cmd := range everyHelp(newRootCommand(&app{})) {
		for i, part := range strings.Split(cmd.Example, "\n\n") {
			texts[fmt.Sprintf("help %s (%d)", cmd.Name(), i)] = part
		}
	}
	for path, text := range documents(t) {
		for i, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
			texts[fmt.Sprintf("%s (%d)", path, i)] = block[1]
		}
	}
	for where, text := range texts {
		if !strings.Contains(text, "$(leasehold") {
			delete(texts, where)
		}
	}
	return texts
}

func everyHelp(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for _, c := range root.Commands() {
		all = append(all, everyHelp(c)...)
	}
	return all
}

// documents are README and docs, by their paths.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %v", pattern, paths, err)
		}
		for _, path := range paths {
			texts[path] = string(read(t, path))
		}
	}
	return texts
}

// Every recipe that is told works, and stops where there is no lock, whatever the reason.
func TestRecipesStopWithoutTheLock(t *testing.T) {
	t.Parallel()
	needShells(t)
	all := recipes(t)
	if len(all) < 2 {
		t.Fatalf("only these are found: %q", all)
	}
	for where, text := range all {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			write(t, filepath.Join(c.dir, "deploy.sh"), []byte("#!/bin/sh\necho DEPLOYED\n"))
			if err := os.Chmod(filepath.Join(c.dir, "deploy.sh"), 0o700); err != nil {
				t.Fatal(err)
			}
			busy, without := newCLI(t), newCLI(t)
			busy.dir, without.dir = c.dir, c.dir
			lease := busy.acquire("--ttl", "1h", "deploy")
			busy.wantStop("busy", map[bool]int{false: 1, true: 75}[strings.Contains(text, "renew")],
				"export LEASEHOLD_OWNER=another\n"+strings.ReplaceAll(text, "-w 10", "-n"))
			without.env = []string{"PATH=" + c.dir + ":/usr/bin:/bin"}
			without.wantStop("not installed", 127, text)
			write(t, filepath.Join(c.dir, "leasehold"), []byte("#!/bin/sh\nkill -9 $$\n"))
			if err := os.Chmod(filepath.Join(c.dir, "leasehold"), 0o700); err != nil {
				t.Fatal(err)
			}
			without.wantStop("killed", 137, text)
			for _, shell := range shells {
				if strings.Contains(text, "renew") {
					c = busy
					c.env = []string{"LEASEHOLD_OWNER=" + lease.Owner}
				}
				c.exec(shell, "-ec", text+"\necho WENT ON >&2; leasehold release deploy || true").wantCode(t, 0)
				if c == busy {
					lease = c.acquire("--ttl", "1h", "deploy")
				}
			}
		})
	}
}
