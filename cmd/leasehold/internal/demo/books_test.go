package demo

import (
	"context"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/memory"
)

// The server has written the step down, and waits for a standby that never comes before it says so.
func TestStepInCommitWhenItsLeaseEndsIsNotRepeated(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := servers.StartPostgres(t, "synchronous_commit=local", "synchronous_standby_names=nobody")
	b, err := createBooks(ctx, p.URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer b.drop(ctx)
	if err := b.create(ctx, `CREATE TABLE n (n INTEGER NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	w := &worker{books: b, locks: locks}
	attempts, lost, ended := 0, make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- again(func() error {
			return w.under(ctx, "sale", func(held context.Context, t *ticket) error {
				attempts++
				return b.step(held, t, func(tx *tx) error {
					if attempts == 1 {
						context.AfterFunc(held, func() { close(lost) })
						if _, err := tx.write(`SET LOCAL synchronous_commit = on`); err != nil {
							return err
						}
					}
					_, err := tx.write(`INSERT INTO n VALUES (?)`, attempts)
					return err
				})
			})
		})
	}()
	const waiting = " FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
	claimtest.Eventually(t, "a commit to wait", func() bool { return p.Must(t, "SELECT count(*)"+waiting) == "1" })
	state, err := locks.Inspect(ctx, "sale")
	if err == nil {
		err = locks.Evict(ctx, "sale", state.Holders[0].Owner.Reveal(), "for the test")
	}
	if err != nil {
		t.Fatal(err)
	}
	<-lost
	p.Must(t, "SELECT count(pg_cancel_backend(pid))"+waiting) // it waits no longer
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if all, err := readNumbers(t, b, `SELECT n FROM n`); len(all) != 1 || err != nil {
		t.Errorf("the books have %v, %v after %d attempts; want one row", all, err, attempts)
	}
}
