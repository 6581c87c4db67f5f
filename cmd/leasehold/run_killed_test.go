//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestKillByNameLeavesNobodyBeside: who kills "leasehold" by its name, or by its command
// line, does not kill the guardian with it.
func TestKillByNameLeavesNobodyBeside(t *testing.T) {
	t.Parallel()
	for i, kill := range [][]string{{"killall", "-9"}, {"pkill", "-9"}, {"pkill", "-9", "-f"}} {
		t.Run(fmt.Sprint(kill), func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(kill[0]); err != nil {
				t.Skip(err)
			}
			c := newCLI(t)
			name := fmt.Sprintf("lh%d-%d", os.Getpid(), i) // no other process of this machine
			c.binary = filepath.Join(c.dir, name)
			if err := os.Link(binary, c.binary); err != nil {
				t.Fatal(err)
			}
			c.tree(deaf, "--ttl", "3s")
			if out, err := exec.Command(kill[0], append(kill[1:], name)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			c.successor(time.Now(), 3*time.Second)
		})
	}
}

// TestGuardiansLineTellsNothing: neither the command, whose name somebody may kill by, nor
// anything secret is on it.
func TestGuardiansLineTellsNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.start("run", "job", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
	guardian := parent(t, c.readInt("pid"))
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guardian))
	if err != nil {
		t.Fatal(err)
	}
	if want := "lock-guardian\x00guard\x00"; len(line) > len(want)+4 || string(line[:len(want)]) != want {
		t.Errorf("the guardian's line is %q", line)
	}
}
