package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demoReport is what each scenario prints with --json.
type demoReport struct {
	Scenario string
	Settings map[string]any
	Runs     map[string]map[string]any
}

func TestSeckillAsJSON(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.store = ""
	c.env = []string{"TMPDIR=" + c.dir}
	o := c.want(0, "demo", "seckill", "--json")
	var r demoReport
	o.json(t, &r)
	check := func(what string, got map[string]any, want map[string]float64) {
		for field, n := range want {
			if got[field] != n {
				t.Errorf("%s.%s is %v, want %v", what, field, got[field], n)
			}
		}
	}
	check("settings", r.Settings, map[string]float64{"buyers": 30, "stock": 5, "processes": 3})
	for _, strategy := range []string{"lock", "optimistic"} {
		check(strategy, r.Runs[strategy], map[string]float64{"sold": 5, "left": 0, "oversold": 0, "turned_away": 25})
		if broken, ok := r.Runs[strategy]["broken"].([]any); !ok || len(broken) > 0 {
			t.Errorf("%s: broken %v", strategy, r.Runs[strategy]["broken"])
		}
	}
	if u := r.Runs["none"]; u["oversold"].(float64) < 1 || len(u["broken"].([]any)) == 0 {
		t.Errorf("none: %v, want it oversold", u)
	}
	for strategy, run := range r.Runs {
		for _, field := range []string{"wait_p50_ms", "wait_p99_ms", "total_ms"} {
			if ms, ok := run[field].(float64); !ok || ms <= 0 {
				t.Errorf("%s: no %s", strategy, field)
			}
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
	contains(t, o.stdout, "12 buyers in 2 processes, 3 pieces", "WITHOUT LOCK", "UNDER LOCK", "OPTIMISTIC", "sold", "left", "oversold", "turned away",
		"gave up", "wait p50", "wait p99", "total time", "in order", "without lock: sold ")
	if _, err := os.Stat(strings.TrimPrefix(c.store, "sqlite:")); err != nil {
		t.Errorf("the chosen store was not used: %v", err)
	}
}

func TestDemoListsItsScenarios(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	list := c.want(0, "demo").stdout
	for _, name := range []string{"seckill", "inventory", "coupon", "cron", "longjob", "parking", "failover"} {
		contains(t, list, "\n  "+name+" ")
		contains(t, c.want(0, "demo", name, "--help").stdout, "--strategy", "--shop", "leasehold demo "+name, "Exit code 1")
	}
	if strings.Contains(list, "process ") {
		t.Error("what is started by the program is listed")
	}
}

func TestOneStrategyAlone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var r demoReport
	c.want(0, "demo", "inventory", "--strategy", "optimistic", "--items", "2", "--json").json(t, &r)
	if len(r.Runs) != 1 || r.Runs["optimistic"] == nil {
		t.Errorf("runs: %v", r.Runs)
	}
}

func TestWrongDemoUsage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"seckill --strategy x", "seckill --strategy async", "seckill --retries -2", "inventory --quantities 1,x", "inventory --quantities 0",
		"coupon --ttl 0", "coupon --processes 1", "cron --day 1ms", "longjob --steps 1", "parking --most 9", "failover --strategy none",
		"seckill --shop user:" + canary + "@h", "seckill --shop redis://u:" + canary + "@h", "seckill --shop mysql://u:" + canary + "@h/?x=1",
	} {
		o := c.want(64, append([]string{"demo"}, strings.Fields(line)...)...)
		contains(t, o.stderr, "See: leasehold demo ")
	}
	o := c.want(69, "demo", "seckill", "--shop", "postgres://u:"+canary+"@127.0.0.1:1/db")
	contains(t, o.stderr, "create the books")
	c.store = "redis+cluster://127.0.0.1:1"
	contains(t, c.want(69, "demo", "longjob", "--strategy", "lock").stderr, c.store, "no server answers")
}

var longSale = []string{"seckill", "--buyers", "5000", "--stock", "5000"}

// startDemo starts a scenario that takes long and returns when it has its processes, three.
func (c *cli) startDemo(args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := exec.Command(binary, append([]string{"demo", "--strategy", "lock"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+c.dir)
	cmd.SysProcAttr = ownGroup()
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
		if got = len(c.processes()); got == n {
			return
		}
	}
	c.t.Fatalf("%d processes, want %d", got, n)
}

// processes returns the environments of the processes that have the test's folder in it, by pid.
func (c *cli) processes() map[int]string {
	c.t.Helper()
	return c.processesWith("TMPDIR=" + c.dir)
}

// processesWith returns the environments of the processes that have the entry in it, by pid.
func (c *cli) processesWith(entry string) map[int]string {
	c.t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(environs) == 0 {
		c.t.Skip("no /proc to find processes in")
	}
	all := make(map[int]string)
	for _, path := range environs {
		env, _ := os.ReadFile(path) // it may have ended meanwhile
		if bytes.Contains(env, []byte(entry+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			all[pid] = string(env)
		}
	}
	return all
}

// Ctrl-C reaches the whole group of the terminal.
func TestSeckillInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := newCLI(t)
		cmd := c.startDemo(longSale...)
		if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := shellCode(cmd.ProcessState); code != 128+int(sig) {
			t.Errorf("%v: exit code %d, want %d", sig, code, 128+int(sig))
		}
		c.untilProcesses(0)
		c.wantNoFiles()
	}
}

// The coupon's first process is stopped then.
func TestDemoProcessesEndWithAKilledParent(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{longSale, {"coupon", "--ttl", "1m"}} {
		c := newCLI(t)
		cmd := c.startDemo(args...)
		cmd.Process.Kill()
		cmd.Wait()
		c.untilProcesses(0)
	}
}
