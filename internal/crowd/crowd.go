// Package crowd measures what waiters cost, in a process of their own: it has no race
// detector, and nothing else runs in it.
package crowd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A Crowd is the process, as its test has it.
type Crowd struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

// Start builds the command of testdata/waiters and runs it with args. It is killed with the
// test.
func Start(t testing.TB, args ...string) *Crowd {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "waiters")
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/waiters").CombinedOutput(); err != nil {
		t.Fatalf("build the waiters: %v\n%s", err, out)
	}
	cmd := exec.Command(binary, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
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
	return &Crowd{t, in, bufio.NewScanner(out)}
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

// Share is the part of a core that the process uses from now on for that long: the least of three
// such times, as a busy machine makes the same work dearer; who spins does so in each. One
// that is below enough ends it.
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
	before, start := c.cpuTime(), time.Now()
	time.Sleep(lasts)
	used, lasted := c.cpuTime()-before, time.Since(start)
	c.t.Logf("%v of CPU in %v", used, lasted)
	return used.Seconds() / lasted.Seconds()
}

func (c *Crowd) cpuTime() time.Duration {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in); err != nil {
		c.t.Fatal(err)
	}
	used, err := time.ParseDuration(c.hear())
	if err != nil {
		c.t.Fatal(err)
	}
	return used
}

func (c *Crowd) says(want string) {
	c.t.Helper()
	if line := c.hear(); line != want {
		c.t.Fatalf("the waiters say %q, want %q", line, want)
	}
}

func (c *Crowd) hear() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatal("the waiters have ended")
	}
	return c.out.Text()
}

const waiting, served = "waiting", "served"

// Tell is the process's side: count waiters tell on queued that they wait, and wait returns
// when all were served. Whoever writes a line is told the CPU time so far.
func Tell(count int, queued <-chan struct{}, wait func()) {
	for range count {
		<-queued
	}
	fmt.Println(waiting)
	go tellTimes()
	wait()
	fmt.Println(served)
}

func tellTimes() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			panic(err) // there is no such process as this one
		}
		fmt.Println(time.Duration(u.Utime.Nano() + u.Stime.Nano()))
	}
}
