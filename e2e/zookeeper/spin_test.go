package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/e2e/servers"
	"github.com/leasehold-go/leasehold/zklock"
)

// spinShare is how much of a core 50 waiters may use while they have no ensemble.
const spinShare = 0.02

// TestNoQuorum: two of three servers are gone. Calls fail within their bounds and say why,
// 50 waiters of another process do not spin, and all goes on without help when the servers
// are back.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	const session, lasts = 6 * time.Second, 5 * time.Second
	all := servers.StartZooKeepers(t, 3, quick)
	d := driverOn(t, &zklock.Options{SessionTimeout: session}, addresses(all)...)
	first := mustAcquire(t, lockerOn(t, d, leasehold.Options{}), "wanted")
	waiters := startWaiters(t, all, 50, session)
	waiters.say("waiting")
	for _, z := range all[1:] {
		z.Kill()
	}
	<-first.Context().Done()
	waitFor(t, "an error that tells of the quorum", func() bool {
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := d.Inspect(short, "wanted")
		return errors.Is(err, zklock.ErrNoQuorum) || errors.Is(err, zklock.ErrUnreachable)
	})
	before, start := waiters.cpuTime(), time.Now()
	time.Sleep(lasts)
	if share := (waiters.cpuTime() - before).Seconds() / time.Since(start).Seconds(); share > spinShare {
		t.Errorf("%.1f %% of a core for 50 waiters without an ensemble", 100*share)
	} else {
		t.Logf("%.1f %% of a core for 50 waiters without an ensemble", 100*share)
	}
	for _, z := range all[1:] {
		z.Start(t)
	}
	waiters.say("served")
	if err := first.Release(t.Context()); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("Release of a lease whose session has ended: %v; want ErrLost", err)
	}
}

// A crowd is waiters in a process of their own, which has no race detector: see
// testdata/waiters.
type crowd struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

func startWaiters(t testing.TB, all []*servers.ZooKeeper, count int, session time.Duration) crowd {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "waiters")
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/waiters").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(binary, strings.Join(addresses(all), ","), strconv.Itoa(count), session.String())
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
	return crowd{t, in, bufio.NewScanner(out)}
}

// hear returns the next line.
func (c crowd) hear() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatal("the waiters have ended")
	}
	return c.out.Text()
}

func (c crowd) say(want string) {
	c.t.Helper()
	if line := c.hear(); line != want {
		c.t.Fatalf("the waiters say %q, want %q", line, want)
	}
}

// cpuTime is what the process has used so far.
func (c crowd) cpuTime() time.Duration {
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
