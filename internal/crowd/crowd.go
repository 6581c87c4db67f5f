// Package crowd measures the cost of waiters. They run in a process of their own, without a race
// detector and with nothing else in it, or in a fleet of processes that want one name.
package crowd

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// A Crowd is a process of waiters, as seen by its test.
type Crowd struct {
	t   testing.TB
	pid int
	out *bufio.Scanner
}

// Start builds the command of testdata/waiters and runs it with args. It is killed when the test
// ends.
func Start(t testing.TB, args ...string) *Crowd {
	t.Helper()
	cmd := exec.Command(Build(t, "./testdata/waiters"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return &Crowd{t, cmd.Process.Pid, bufio.NewScanner(out)}
}

// Waiting returns when all wait.
func (c *Crowd) Waiting() {
	c.t.Helper()
	c.says(waiting)
}

// Served returns when all were served.
func (c *Crowd) Served() {
	c.t.Helper()
	c.says(served)
}

// Share measures the share of a core that the process uses, as the least of three periods of that
// length. A busy machine makes the same work dearer, but a process that spins does so in each
// period. A share of at most enough ends the measurement.
func (c *Crowd) Share(lasts time.Duration, enough float64) float64 {
	c.t.Helper()
	share := c.share(lasts)
	for i := 0; i < 2 && share > enough; i++ {
		share = min(share, c.share(lasts))
	}
	return share
}

func (c *Crowd) share(lasts time.Duration) float64 {
	c.t.Helper()
	before, start := ProcessCPU(c.t, c.pid), time.Now()
	time.Sleep(lasts)
	used, lasted := ProcessCPU(c.t, c.pid)-before, time.Since(start)
	c.t.Logf("%v of CPU in %v", used, lasted)
	return used.Seconds() / lasted.Seconds()
}

func (c *Crowd) says(want string) {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatal("the waiters have ended")
	}
	if line := c.out.Text(); line != want {
		c.t.Fatalf("the waiters say %q, want %q", line, want)
	}
}

const waiting, served = "waiting", "served"

// Tell is the process's side. It reports when count waiters have sent to queued, and again when
// wait returns, which means that all were served.
func Tell(count int, queued <-chan struct{}, wait func()) {
	for range count {
		<-queued
	}
	fmt.Println(waiting)
	wait()
	fmt.Println(served)
}
