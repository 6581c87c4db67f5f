package etcd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/e2e/servers"
)

// spinShare is how much of a core 50 waiters may use while they have no cluster.
const spinShare = 0.02

// While the cluster is down, or has no quorum, fifty that wait cost next to nothing; when
// it is back, all are served without help.
func TestWaitersDoNotSpinWhileTheClusterIsDown(t *testing.T) {
	t.Parallel()
	for what, left := range map[string]int{"all down": 0, "no quorum": 1} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const waiters, down = 50, 5 * time.Second
			members := servers.StartEtcdCluster(t, servers.EtcdCurrent, 3)
			holder := lockerOn(t, driverOn(t, clientOf(t, members...), nil), leasehold.Options{TTL: 30 * time.Second})
			var held []*leasehold.Lease
			for i := range waiters { // names of their own, so that each asks the cluster
				lease, err := holder.Acquire(t.Context(), fmt.Sprint("a", i))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, lease)
			}
			all := startWaiters(t, members, waiters)
			all.say("waiting")
			for _, m := range members[left:] {
				m.Kill()
			}
			before, start := all.cpuTime(), time.Now()
			time.Sleep(down)
			used, lasted := all.cpuTime()-before, time.Since(start)
			t.Logf("%v of CPU in %v with %d waiters", used, lasted, waiters)
			if share := used.Seconds() / lasted.Seconds(); share > spinShare {
				t.Errorf("%d waiters used %.1f %% of a core while the cluster was down; want at most %.0f %%", waiters, 100*share, 100*spinShare)
			}
			for _, m := range members[left:] {
				m.Begin()
			}
			for _, m := range members {
				m.Ready()
			}
			for _, lease := range held {
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			all.say("served")
		})
	}
}

// A crowd is waiters in a process of their own, without the race detector: see
// testdata/waiters.
type crowd struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

func startWaiters(t testing.TB, members []*servers.Etcd, count int) crowd {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "waiters")
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/waiters").CombinedOutput(); err != nil {
		t.Fatalf("build the waiters: %v\n%s", err, out)
	}
	cmd := exec.Command(binary, strings.Join(servers.Endpoints(members...), ","), fmt.Sprint(count))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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
