package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestSeckillAsJSON(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.env = []string{"TMPDIR=" + c.dir}
	o := c.want(0, "demo", "seckill", "--json")
	var r map[string]map[string]float64
	o.json(t, &r)
	for run, want := range map[string]map[string]float64{
		"sale":   {"buyers": 30, "stock": 5, "processes": 3},
		"locked": {"sold": 5, "left": 0, "oversold": 0, "turned_away": 25},
	} {
		for field, n := range want {
			if got, ok := r[run][field]; !ok || got != n {
				t.Errorf("%s.%s is %v, want %v", run, field, got, n)
			}
		}
	}
	u := r["unlocked"]
	if u["oversold"] < 1 || u["sold"] != 5+u["oversold"] || u["turned_away"] != 30-u["sold"] {
		t.Errorf("unlocked: %v, want it oversold", u)
	}
	for _, field := range []string{"wait_p50_ms", "wait_p99_ms", "total_ms"} {
		if r["locked"][field] <= 0 || u[field] <= 0 {
			t.Errorf("no %s", field)
		}
	}
	if o.stderr != "" {
		t.Errorf("progress where nobody watches: %q", o.stderr)
	}
	c.wantNoFiles()
}

// wantNoFiles checks that the temporary folder is empty and no default store was made.
func (c *cli) wantNoFiles() {
	c.t.Helper()
	left, err := os.ReadDir(c.dir)
	if err != nil || len(left) > 0 {
		c.t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestSeckillTableAndStore(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	o := c.want(0, "demo", "seckill", "--buyers", "12", "--stock", "3", "--processes", "2")
	contains(t, o.stdout, "12 buyers in 2 processes, 3 pieces", "WITHOUT LOCK", "UNDER LOCK", "sold", "left", "oversold", "turned away", "wait p50", "wait p99", "total time")
	if _, err := os.Stat(strings.TrimPrefix(c.store, "sqlite:")); err != nil {
		t.Errorf("the chosen store was not used: %v", err)
	}
}

// startSeckill starts a long sale and returns when it has processes of buyers.
func (c *cli) startSeckill() *exec.Cmd {
	c.t.Helper()
	cmd := exec.Command(binary, "demo", "seckill", "--buyers", "5000", "--stock", "5000")
	cmd.Env = append(os.Environ(), "TMPDIR="+c.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cmd.Process.Kill() })
	c.untilProcesses(4)
	return cmd
}

// untilProcesses waits until n processes have the test's folder in their environment.
func (c *cli) untilProcesses(n int) {
	c.t.Helper()
	got := 0
	for end := time.Now().Add(callBound); time.Now().Before(end); {
		environs, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil || len(environs) == 0 {
			c.t.Skip("no /proc to find processes in")
		}
		got = 0
		for _, path := range environs {
			env, _ := os.ReadFile(path) // it may have ended meanwhile
			if bytes.Contains(env, []byte("TMPDIR="+c.dir+"\x00")) {
				got++
			}
		}
		if got == n {
			return
		}
	}
	c.t.Fatalf("%d processes, want %d", got, n)
}

// Ctrl-C reaches the whole group of the terminal.
func TestSeckillInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := newCLI(t)
		cmd := c.startSeckill()
		if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(sig) {
			t.Errorf("%v: exit code %d, want %d", sig, code, 128+int(sig))
		}
		c.untilProcesses(0)
		c.wantNoFiles()
	}
}

func TestSeckillBuyersEndWithAKilledParent(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	cmd := c.startSeckill()
	cmd.Process.Kill()
	cmd.Wait()
	c.untilProcesses(0)
}
