// Package migrate runs what docs/migrating.md shows: programs that have another lock, beside programs
// that have Leasehold's in its place.
package migrate

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// withLeasehold ships an order under a lock of ours, whatever the engine.
func withLeasehold(ctx context.Context, locks *leasehold.Locker, ship func(ctx context.Context) error) error {
	return locks.Do(ctx, "orders/42", ship) // ErrLost: another process may have shipped it meanwhile, roll back
}

// A counter is a number in a file that programs add to. Without a lock they lose some of it.
type counter struct {
	path     string
	added    atomic.Int32 // sections that have ended
	commands atomic.Int32 // that have not ended yet: they take long to start
}

func newCounter(t *testing.T) *counter {
	c := &counter{path: filepath.Join(t.TempDir(), "number")}
	if err := os.WriteFile(c.path, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// add is the work under the lock.
func (c *counter) add(context.Context) error {
	text, err := os.ReadFile(c.path)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Millisecond)
	return os.WriteFile(c.path, []byte(strconv.Itoa(n+1)), 0o600)
}

// rounds is how often each program has the lock.
const rounds = 10

// A program runs sections that add to c, rounds at least.
type program struct {
	run     func(ctx context.Context, c *counter) error
	command bool
}

// inGo is a program that does its work by with, for as long as there are commands beside it.
func inGo(with func(ctx context.Context, ship func(ctx context.Context) error) error) program {
	return program{run: func(ctx context.Context, c *counter) error {
		for i := 0; i < rounds || c.commands.Load() > 0; i++ {
			if err := with(ctx, c.add); err != nil {
				return err
			}
			c.added.Add(1)
			if i > rounds {
				time.Sleep(20 * time.Millisecond) // theirs do not queue
			}
		}
		return nil
	}}
}

// command is a program in another language. The file and the rounds are its last arguments.
func command(t *testing.T, name string, args ...string) program {
	return program{command: true, run: func(ctx context.Context, c *counter) error {
		defer c.commands.Add(-1)
		cmd := exec.CommandContext(ctx, name, append(args, c.path, strconv.Itoa(rounds))...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%s:\n%s", cmd, out)
		}
		c.added.Add(rounds)
		return err
	}}
}

// together runs each program twice at the same time, and sees that none came between another's
// reading and writing.
func together(t *testing.T, programs map[string]program) {
	t.Helper()
	c := newCounter(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, p := range programs {
		if p.command {
			c.commands.Add(2)
		}
	}
	var all sync.WaitGroup
	for name, p := range programs {
		for range 2 {
			all.Go(func() {
				if err := p.run(ctx, c); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	all.Wait()
	text, err := os.ReadFile(c.path)
	if got, want := string(text), strconv.Itoa(int(c.added.Load())); err != nil || got != want {
		t.Errorf("the number is %q after %s sections: %v", got, want, err)
	}
}

// opened closes what a page has the program close at its end.
func opened(t *testing.T) func(d driver.Driver, locks *leasehold.Locker, err error) *leasehold.Locker {
	return func(d driver.Driver, locks *leasehold.Locker, err error) *leasehold.Locker {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { locks.Close(); d.Close() })
		return locks
	}
}

// A counter without a lock shows what the others rely on.
func TestWithoutALockSomeIsLost(t *testing.T) {
	c := newCounter(t)
	var all sync.WaitGroup
	start := make(chan bool)
	for range 20 {
		all.Go(func() {
			<-start
			_ = c.add(t.Context()) // it may read what another is writing
		})
	}
	close(start)
	all.Wait()
	if text, err := os.ReadFile(c.path); err != nil || string(text) == "20" {
		t.Errorf("the number is %q: %v; want less than 20", text, err)
	}
}
