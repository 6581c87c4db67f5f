package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A release that has waited for the row, such as for another process that joined the queue, does not see who waits. It
// looks again, and grants the lock to the next waiter itself.
func TestPostgresPassesBesideAJoin(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d, other := opened(t, p.URL(), ""), opened(t, p.URL(), p.URL())
	holder := asks(t, d, "x", nil)
	holder.granted(t)
	waiter := asks(t, other, "x", func(req *driver.Request) { req.Queue = true })
	waiter.refused(t)
	claimtest.Eventually(t, "the waiter listens", func() bool {
		return p.Must(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'") == "1"
	})
	_, err := waiter.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok || busy.Granted == nil {
		t.Fatalf("Try: %v; want a refusal that a grant may follow", err)
	}
	tx, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("UPDATE leasehold_locks SET rev = rev + 1 WHERE name = 'x'"); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() { released <- holder.Release(t.Context(), driver.End{}) }()
	claimtest.Eventually(t, "the release waits for the row", func() bool {
		return p.Must(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "1"
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	select {
	case <-busy.Granted:
	case <-busy.Wake:
		select {
		case <-busy.Granted:
		default:
			t.Error("the waiter was woken to look, not granted the lock")
		}
	case <-time.After(30 * time.Second):
		t.Error("the waiter was not told")
	}
}
