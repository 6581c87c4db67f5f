// Package once checks fence.Once on a real database.
package once

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/memory"
)

// A bench is a database with a table in which effects are counted.
type bench struct {
	t    *testing.T
	db   *sql.DB
	once *fence.Once
}

// Check runs all checks on db. No other test may use db.
func Check(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	guard, err := fence.NewSQL(dialect, "")
	if err != nil {
		t.Fatal(err)
	}
	o, err := fence.NewOnce(guard, "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // any number of times is allowed
		if err := o.Migrate(bounded(t), db); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{`effects (what INTEGER NOT NULL)`, `alien (door INTEGER NOT NULL)`} {
		if _, err := db.ExecContext(bounded(t), `CREATE TABLE IF NOT EXISTS `+table); err != nil {
			t.Fatal(err)
		}
	}
	alien(t, db, dialect, guard)
	wrongDialects(t, db, dialect)
	checks := map[string]func(*bench){
		"ItHappensOnce":       itHappensOnce,
		"BothOrNeither":       bothOrNeither,
		"LateHolderIsRefused": lateHolderIsRefused,
		"OneOfManyWins":       oneOfManyWins,
		"KeysAreData":         keysAreData,
	}
	if dialect != fence.SQLite { // SQLite has no connection to break; its own test kills a process
		checks["DeathInTheMiddle"] = deathInTheMiddle
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) { check(&bench{t, db, o}) })
	}
}

// alien: tables of another program are refused, although CREATE TABLE IF NOT EXISTS accepts them.
func alien(t *testing.T, db *sql.DB, dialect fence.Dialect, guard *fence.SQL) {
	t.Helper()
	g, err := fence.NewSQL(dialect, "alien")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Migrate(bounded(t), db); err == nil {
		t.Error("a guard took another program's table")
	}
	o, err := fence.NewOnce(guard, "alien")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Migrate(bounded(t), db); err == nil {
		t.Error("a Once took another program's table")
	}
}

// wrongDialects: a guard with another dialect guards nothing. It says so at its first use at the
// latest.
func wrongDialects(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	t.Helper()
	for _, wrong := range []fence.Dialect{fence.SQLite, fence.Postgres, fence.MySQL} {
		if wrong == dialect {
			continue
		}
		g, err := fence.NewSQL(wrong, fmt.Sprint("wrong", wrong))
		if err != nil {
			t.Fatal(err)
		}
		err = g.Migrate(bounded(t), db)
		if err == nil {
			tx, begun := db.BeginTx(bounded(t), nil)
			if begun != nil {
				t.Fatal(begun)
			}
			err = g.Check(bounded(t), tx, fence.LeaseOf("stock", 10, "a"))
			tx.Rollback()
		}
		if err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("dialect %d on a database of dialect %d: %v", wrong, dialect, err)
		}
		t.Logf("dialect %d on a database of dialect %d: %v", wrong, dialect, err)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (b *bench) effects() (n int) {
	b.t.Helper()
	if err := b.db.QueryRowContext(bounded(b.t), `SELECT count(*) FROM effects`).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func effect(tx *sql.Tx) error {
	_, err := tx.Exec(`INSERT INTO effects VALUES (1)`)
	return err
}

func (b *bench) do(key string, l fence.Lease, f func(tx *sql.Tx) error) error {
	return b.once.Do(bounded(b.t), b.db, key, l, f)
}

// want checks the result of a Do, and how many effects there are more than before.
func (b *bench) want(what string, got, want error, before, effects int) {
	b.t.Helper()
	if !errors.Is(got, want) {
		b.t.Errorf("%s: %v, want %v", what, got, want)
	}
	if n := b.effects() - before; n != effects {
		b.t.Errorf("%s: %d effects, want %d", what, n, effects)
	}
}

// itHappensOnce: a real lease marks a key. All later calls, including its own, return ErrDone.
func itHappensOnce(b *bench) {
	before := b.effects()
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer locks.Close()
	for want := error(nil); ; want = fence.ErrDone {
		held, err := locks.Acquire(bounded(b.t), "report")
		if err != nil {
			b.t.Fatal(err)
		}
		b.want("first", b.do("2026-11-20", held, effect), want, before, 1)
		b.want("again", b.do("2026-11-20", held, effect), fence.ErrDone, before, 1)
		held.Release(bounded(b.t))
		if want != nil {
			return
		}
	}
}

func bothOrNeither(b *bench) {
	before, why := b.effects(), errors.New("out of paper")
	l := fence.LeaseOf("printer", 10, "a")
	fails := func(tx *sql.Tx) error { return errors.Join(effect(tx), why) }
	b.want("an effect that fails", b.do("page-1", l, fails), why, before, 0)
	b.want("then works", b.do("page-1", l, effect), nil, before, 1)
	ctx, cancel := context.WithCancel(bounded(b.t))
	gone := func(tx *sql.Tx) error {
		err := effect(tx)
		cancel()
		return err
	}
	if err := b.once.Do(ctx, b.db, "page-2", l, gone); err == nil || errors.Is(err, fence.ErrDone) {
		b.t.Errorf("a caller that went away: %v", err)
	}
	b.want("then works", b.do("page-2", l, effect), nil, before, 2)
}

// deathInTheMiddle: the connection breaks between the effect and the commit, as when the process is
// killed. Nothing has happened, and the next holder does it.
func deathInTheMiddle(b *bench) {
	before := b.effects()
	conn, err := b.db.Conn(bounded(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	tx, err := conn.BeginTx(bounded(b.t), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := errors.Join(b.once.Mark(bounded(b.t), tx, "mail-1", fence.LeaseOf("mails", 10, "a")), effect(tx)); err != nil {
		b.t.Fatal(err)
	}
	_ = conn.Raw(func(c any) error { return c.(io.Closer).Close() })
	_ = tx.Rollback() // the connection is closed, so this only frees the client's side
	_ = conn.Close()
	b.want("the next holder", b.do("mail-1", fence.LeaseOf("mails", 11, "b"), effect), nil, before, 1)
}

// lateHolderIsRefused: a holder that was overtaken cannot perform a new effect. If it repeats its own
// earlier effect, it learns that it is done.
func lateHolderIsRefused(b *bench) {
	before := b.effects()
	late, present := fence.LeaseOf("stock", 10, "a"), fence.LeaseOf("stock", 11, "b")
	b.want("before", b.do("sku-1", late, effect), nil, before, 1)
	b.want("the next holder", b.do("sku-2", present, effect), nil, before, 2)
	b.want("what is done, by the late one", b.do("sku-1", late, effect), fence.ErrDone, before, 2)
	b.want("the late one", b.do("sku-3", late, effect), fence.ErrStale, before, 2)
	b.want("of another resource", b.do("sku-3", fence.LeaseOf("other", 10, "a"), effect), nil, before, 3)
	b.want("without fencing", b.do("sku-4", fence.LeaseOf("stock", 0, "b"), effect), fence.ErrStale, before, 3)
}

// oneOfManyWins: of holders that all believe to hold, with tokens in any order, one wins.
func oneOfManyWins(b *bench) {
	before := b.effects()
	var won, refused atomic.Int32
	var crowd sync.WaitGroup
	for i := range 20 {
		crowd.Go(func() {
			l := fence.LeaseOf("crowd", uint64(10+i%5), string(rune('a'+i)))
			for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
				switch err := b.do("once", l, effect); {
				case err == nil:
					won.Add(1)
					return
				case errors.Is(err, fence.ErrDone), errors.Is(err, fence.ErrStale):
					refused.Add(1)
					return
				}
				time.Sleep(time.Millisecond) // after a deadlock or with a busy file the outcome is unknown, so repeat
			}
		})
	}
	crowd.Wait()
	if won.Load() != 1 || refused.Load() != 19 || b.effects()-before != 1 {
		b.t.Errorf("%d won, %d were refused, %d effects", won.Load(), refused.Load(), b.effects()-before)
	}
}

func keysAreData(b *bench) {
	before := b.effects()
	keys := []string{"k", "K", "k ", "é", "e\u0301", "a/b", `'"; --`}
	for i, key := range keys {
		b.want(key, b.do(key, fence.LeaseOf("names", 10, "a"), effect), nil, before, i+1)
	}
	for _, key := range []string{"", "a\nb", string(make([]byte, 513))} {
		b.want("not a name", b.do(key, fence.LeaseOf("names", 10, "a"), effect), leasehold.ErrInvalidName, before, len(keys))
	}
}
