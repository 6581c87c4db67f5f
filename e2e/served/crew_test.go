package served

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/details"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"golang.org/x/sys/unix"
)

// contended is what the crew takes, and crewTTL for how long.
const (
	contended = "contended"
	crewTTL   = 3 * time.Second
)

// A crew are holders in three languages, two of each, which take one resource again and again
// through the balancer, hold it for 20 ms, or for as long as the file longer is there, and tell what
// they believed.
type crew struct {
	t       *testing.T
	longer  string
	history locktest.History
	running sync.WaitGroup
	stops   []func()
	clock   monotonic

	mu     sync.Mutex
	served map[string]int // guarded by mu; by language
	busy   int            // guarded by mu; refusals after 10 s
}

func hire(t *testing.T, s *service) *crew {
	t.Helper()
	c := &crew{t: t, longer: filepath.Join(t.TempDir(), "longer"), served: make(map[string]int), clock: readClocks()}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c.goes(s)
		c.runs("python", s, "/usr/bin/python3", "-B", filepath.Join(root, "e2e/served/crew/holder.py"))
		c.runs("node", s, "node", filepath.Join(root, "e2e/served/crew/holder.mjs"))
	}
	return c
}

// believed adds what one believed, in one language.
func (c *crew) believed(language string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served[language]++
}

// least is how often the language was served that was served least.
func (c *crew) least() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.served["go"], c.served["python"], c.served["node"])
}

// refused is how often one was not served within 10 s.
func (c *crew) refused() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy
}

// goes has a holder in Go.
func (c *crew) goes(s *service) {
	d := s.harness().Open(c.t)
	locks, err := leasehold.New(d, &leasehold.Options{TTL: crewTTL, HandOver: -1})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { locks.Close(); d.Close() })
	ctx, stop := context.WithCancel(c.t.Context())
	c.stops = append(c.stops, stop)
	c.running.Go(func() {
		for ctx.Err() == nil {
			c.hold(ctx, locks)
		}
	})
}

// hold takes it once. A call that has no answer is made again by the caller.
func (c *crew) hold(ctx context.Context, locks *leasehold.Locker) {
	lease, err := locks.Acquire(ctx, contended, leasehold.Wait(10*time.Second), leasehold.Note("go"))
	if err != nil {
		if errors.Is(err, leasehold.ErrBusy) && ctx.Err() == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.busy++
		}
		return
	}
	done := c.history.Believe(lease)
	for from := time.Now(); lease.Context().Err() == nil && (time.Since(from) < 20*time.Millisecond || exists(c.longer)); {
		select {
		case <-lease.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	done()
	c.believed("go")
	_ = lease.Release(ctx) // what it comes to is the history's business
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// keep has a holder in one language hold until give is called, and returns when it does.
func (c *crew) keep(d driver.Operator, language string) (give func()) {
	c.t.Helper()
	give = func() { _ = os.Remove(c.longer) } // it may be gone
	claimtest.Eventually(c.t, "a holder in "+language, func() bool {
		if err := os.WriteFile(c.longer, nil, 0o600); err != nil {
			c.t.Fatal(err)
		}
		if c.held(d) == language {
			time.Sleep(100 * time.Millisecond)
			if c.held(d) == language { // it has seen the file
				return true
			}
		}
		give()
		return false
	})
	return give
}

// held is the text of who holds.
func (c *crew) held(d driver.Operator) string {
	state, err := d.Inspect(c.t.Context(), contended)
	if err != nil || len(state.Holders) != 1 {
		return ""
	}
	return details.Text(state.Holders[0].Note)
}

// runs has a holder in another language, a process.
func (c *crew) runs(language string, s *service, command string, args ...string) {
	root, err := filepath.Abs("../../clients")
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(command, append(args, s.url, contended, strconv.FormatFloat(crewTTL.Seconds(), 'f', -1, 64), c.longer)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python/src"), "CLIENT="+filepath.Join(root, "node/leasehold.mjs"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	// Not cmd.StdoutPipe, which the end of the process closes before all is read.
	read, write, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stdout = write
	ended, err := servers.Start(cmd)
	if write.Close(); err != nil {
		c.t.Fatalf("%s: %v (scripts/install-tools installs it)", language, err)
	}
	c.stops = append(c.stops, func() { in.Close() })
	c.t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may be gone
	owner := fmt.Sprintf("%s-%d", language, cmd.Process.Pid)
	c.running.Go(func() {
		defer read.Close()
		c.hears(language, owner, read)
		if err := <-ended; err != nil {
			c.t.Errorf("%s: %v", language, err)
		}
	})
}

// hears reads what a process says.
func (c *crew) hears(language, owner string, said io.Reader) {
	for lines := bufio.NewScanner(said); lines.Scan(); {
		var line struct {
			Token       string
			From, Until int64
			Busy        bool
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			c.t.Errorf("%s says %q", language, lines.Text())
			continue
		}
		if line.Busy {
			c.mu.Lock()
			c.busy++
			c.mu.Unlock()
			continue
		}
		token, err := strconv.ParseUint(line.Token, 10, 64)
		if err != nil {
			c.t.Errorf("%s says %q", language, lines.Text())
		}
		from, until := c.clock.at(line.From).Add(c.clock.unsure), c.clock.at(line.Until).Add(-c.clock.unsure)
		c.history.Add(locktest.Belief{Resource: contended, Owner: owner, Token: token, From: from, Until: until})
		c.believed(language)
	}
}

// isServed waits until each language was served n more times, and reports whether it was.
func (c *crew) isServed(n int, within time.Duration) bool {
	more := c.least() + n
	for end := time.Now().Add(within); c.least() < more; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// quits ends the crew, and checks what they believed.
func (c *crew) quits() {
	c.t.Helper()
	for _, stop := range c.stops {
		stop()
	}
	c.running.Wait()
	if err := c.history.Check(); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("%d beliefs: %v", c.history.Len(), c.served)
}

// A monotonic clock of the kernel is what Go does not show: processes tell their times by it.
type monotonic struct {
	of     time.Time
	nanos  int64
	unsure time.Duration // of the two readings
}

// readClocks reads both clocks together, the best of some tries.
func readClocks() (best monotonic) {
	for range 100 {
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic(err) // Linux has it
		}
		if took := time.Since(before); best.of.IsZero() || took < best.unsure {
			best = monotonic{before, ts.Nano(), took}
		}
	}
	return best
}

func (m monotonic) at(nanos int64) time.Time { return m.of.Add(time.Duration(nanos - m.nanos)) }
