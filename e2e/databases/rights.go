package databases

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/program"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// Canary is a password that must not appear in any text.
const Canary = "s3cr3t-canary"

// LeastRights checks two users. The one of d has only the rights for locks, and can do everything
// except remove rows. The one of nobody has no rights, and can do nothing. The password of d is
// Canary.
func LeastRights(t *testing.T, admin, d, nobody Store) {
	c := claimOf(t, d, driver.Request{Resource: "x"})
	mustTry(t, c)
	if _, err := c.Renew(t.Context(), 2*time.Minute); err != nil {
		t.Error(err)
	}
	if err := c.Note(t.Context(), "a note"); err != nil {
		t.Error(err)
	}
	if err := d.RaiseFence(t.Context(), "y", 7); err != nil {
		t.Error(err)
	}
	waiter := claimOf(t, d, driver.Request{Resource: "x", Owner: "a waiter", Queue: true})
	busy := claimtest.Refused(t, waiter)
	if err := c.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}
	select {
	case <-busy.Wake:
	case <-time.After(margin):
		t.Error("not woken")
	}
	if _, err := waiter.Try(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Evict(t.Context(), "x", "a waiter", "a test"); err != nil {
		t.Error(err)
	}
	if all, _, err := d.List(t.Context(), "", "", 100); err != nil || len(all) != 0 {
		t.Errorf("List: %v, %v", all, err)
	}
	if err := d.Purge(t.Context()); !errors.Is(err, sqllock.ErrDenied) || strings.Contains(err.Error(), Canary) {
		t.Errorf("Purge: %v; want ErrDenied", err)
	}
	if err := admin.Purge(t.Context()); err != nil {
		t.Error(err)
	}
	if err := Try(t, nobody, "x"); !errors.Is(err, sqllock.ErrDenied) {
		t.Errorf("Try without rights: %v; want ErrDenied", err)
	}
}

// CommandRuns runs the command on a store, and checks that its output does not contain Canary.
func CommandRuns(t *testing.T, url string) {
	binary := program.Build(t)
	for _, args := range [][]string{{"run", "job", "--", "true"}, {"ls"}, {"show", "job"}} {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "LEASEHOLD_STORE="+url)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), Canary) {
			t.Errorf("leasehold %v: %v\n%s", args, err, out)
		}
	}
}
