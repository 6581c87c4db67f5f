//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/wire"
)

// serveMemory starts a service with a store of its own, and makes it the store of c.
func (c *cli) serveMemory() {
	c.t.Helper()
	c.store = "memory:"
	_, c.store = c.serve()
}

// sendAway removes the only waiter of a name from its queue, once it waits.
func (c *cli) sendAway(name, reason string) {
	c.t.Helper()
	eventually(c.t, "a waiter of "+name+" is removed", func() bool {
		resp, err := http.Get(c.store + wire.Show + "?name=" + name)
		if err != nil {
			c.t.Fatal(err)
		}
		defer resp.Body.Close()
		var state wire.State
		if err := json.NewDecoder(resp.Body).Decode(&state); err != nil || len(state.Waiters) != 1 {
			return false
		}
		body := fmt.Sprintf(`{"name":%q,"handle":%q,"reason":%q}`, name, state.Waiters[0].Handle, reason)
		return c.post(c.store, wire.Remove, body) == http.StatusOK
	})
}

// Nothing was held, so nothing was lost: a call that an operator removes from the queue is refused.
func TestRemovedWaiterIsRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serveMemory()
	c.acquire("--ttl", "10m", "job")
	for line, want := range map[string]int{
		"run job -- touch ran":         exitBusy,
		"run -E 9 job -- touch ran":    9,
		"acquire job":                  exitBusy,
		"reserve -w 60 --reason r job": exitBusy,
	} {
		j := c.start(strings.Fields(line)...)
		c.sendAway("job", "wrong branch")
		if code := j.code(); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", line, code, want, j.errors())
		}
		contains(t, j.errors(), "removed from the queue: wrong branch")
		if strings.Contains(j.errors(), "The lease is over") {
			t.Errorf("%s: had no lease: %s", line, j.errors())
		}
	}
	c.missing("ran")
}

// A candidate that is removed from the queue campaigns again, before its first term and after it.
func TestRemovedCandidateCampaignsAgain(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serveMemory()
	holder := c.acquire("--ttl", "10m", "sched")
	j := c.start("lead", "sched", "--", "sh", "-c", "echo a $LEASEHOLD_TOKEN >> terms; until [ -e go ]; do sleep 0.02; done")
	c.sendAway("sched", "the first campaign")
	j.says("removed from the queue: the first campaign; campaigning again")
	c.want(0, "release", "sched", holder.Owner)
	c.terms(1)
	other := c.start("run", "sched", "--", "sh", "-c", "echo > held; exec sleep 60")
	eventually(t, "another waits", func() bool { return len(c.shown("sched").Waiters) == 1 })
	write(t, filepath.Join(c.dir, "go"), nil)
	c.read("held")
	if err := os.Remove(filepath.Join(c.dir, "go")); err != nil {
		t.Fatal(err)
	}
	c.sendAway("sched", "a later one")
	j.says("removed from the queue: a later one; campaigning again")
	other.signal(syscall.SIGTERM)
	c.terms(2)
	if strings.Contains(j.errors(), "the store answers again") {
		t.Errorf("the store was never away: %s", j.errors())
	}
}
