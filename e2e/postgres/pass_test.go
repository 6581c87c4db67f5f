package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// A waiter leaves a free lock while another joins the queue behind it. Its statement waits for the row and cannot see the new
// place, but wakes the newcomer all the same.
func TestPostgresLeavesBesideAJoin(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d := opened(t, p.URL(), "")
	asks(t, d, "x", nil).granted(t)
	waiter := asks(t, d, "x", func(req *driver.Request) { req.Queue = true })
	waiter.refused(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	hears, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer hears.Close(context.Background())
	if _, err := hears.Exec(ctx, "LISTEN leasehold_wake"); err != nil {
		t.Fatal(err)
	}
	tx, err := d.DB.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, text := range []string{
		"UPDATE leasehold_locks SET rev = rev + 1, tail = tail + 1, owner = '', expires = 0 WHERE name = 'x'",
		`INSERT INTO leasehold_places (name, seq, owner, proc, mode, lim, wants, note, asks)
			SELECT p.name, l.tail, 'behind', p.proc, p.mode, p.lim, p.wants, p.note, p.asks FROM leasehold_places p JOIN leasehold_locks l ON l.name = p.name`,
	} {
		if _, err := tx.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	left := make(chan error, 1)
	go func() { left <- waiter.Release(ctx, driver.End{}) }()
	claimtest.Eventually(t, "the release waits for the row", func() bool {
		return p.Must(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "1"
	})
	if err := errors.Join(tx.Commit(), <-left); err != nil {
		t.Fatal(err)
	}
	if heard, err := hears.WaitForNotification(ctx); err != nil || heard.Payload != "look" {
		t.Errorf("heard %v, %v; want that others look", heard, err)
	}
}
