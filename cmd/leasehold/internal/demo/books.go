package demo

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
)

// books are the database of the business. About locks they know only the greatest token that they
// were shown.
type books struct {
	place   place // for opening the same books in another process
	dialect fence.Dialect
	db      *sql.DB
	guard   *fence.SQL
	drop    func(ctx context.Context) error // for the process that created them
}

// prepare prepares new books for their tables.
func (b *books) prepare(ctx context.Context) error {
	if b.dialect == fence.SQLite {
		if _, err := b.db.ExecContext(ctx, `PRAGMA journal_mode = WAL`); err != nil {
			return err
		}
	}
	return b.guard.Migrate(ctx, b.db)
}

func (b *books) close() error { return b.db.Close() }

// serial stands for a type in statements that create tables: a number that the database counts up.
const serial = "{serial}"

// create runs statements that create and fill tables.
func (b *books) create(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := b.db.ExecContext(ctx, strings.ReplaceAll(s, serial, databases[b.dialect].serial)); err != nil {
			return fmt.Errorf("create the books: %w", err)
		}
	}
	return nil
}

// A ticket is what an actor shows to the books: the lease that it acts under.
type ticket struct {
	resource, owner string
	token           uint64
}

func ticketOf(lease *leasehold.Lease) *ticket {
	return &ticket{lease.Name(), lease.Owner(), lease.Token()}
}

// step runs a step in a transaction. If there is a ticket, the transaction checks it first. It
// returns fence.ErrStale for a ticket whose lease another holder has succeeded. Reads are checked
// too. If only writes were, a former holder's write could come between the current holder's read
// and write.
func (b *books) step(ctx context.Context, t *ticket, do func(tx *tx) error) error {
	// The end of ctx must not cut Commit: then nobody would know whether the step was written.
	begun, err := b.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: databases[b.dialect].isolation})
	if err != nil {
		return err
	}
	defer begun.Rollback() // does nothing after Commit
	if t != nil {
		if err := b.guard.Check(ctx, begun, fence.LeaseOf(t.resource, t.token, t.owner)); err != nil {
			return err
		}
	}
	if err := do(&tx{ctx, begun, b}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return begun.Commit()
}

// number is a step that reads one number.
func (b *books) number(ctx context.Context, t *ticket, query string, args ...any) (n int, err error) {
	err = b.step(ctx, t, func(tx *tx) error { return tx.row(query, args...).Scan(&n) })
	return n, err
}

// write is a step that runs one statement.
func (b *books) write(ctx context.Context, t *ticket, statement string, args ...any) error {
	return b.step(ctx, t, func(tx *tx) error {
		_, err := tx.write(statement, args...)
		return err
	})
}

// read runs queries after all actors have ended.
func (b *books) read(ctx context.Context, do func(tx *tx) error) error {
	err := b.step(ctx, nil, do)
	if err != nil {
		return fmt.Errorf("read the books: %w", err)
	}
	return nil
}

// text returns a statement with parameters as the database writes them, instead of ?.
func (b *books) text(statement string) string {
	if b.dialect != fence.Postgres {
		return statement
	}
	var text strings.Builder
	n := 0
	for _, c := range statement {
		if c == '?' {
			n++
			fmt.Fprintf(&text, "$%d", n)
		} else {
			text.WriteRune(c)
		}
	}
	return text.String()
}

// A tx is a step in progress.
type tx struct {
	ctx   context.Context
	tx    *sql.Tx
	books *books
}

// row reads one row.
func (t *tx) row(query string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(t.ctx, t.books.text(query), args...)
}

// numbers reads a column of numbers.
func (t *tx) numbers(query string, args ...any) (all []int, err error) {
	rows, err := t.tx.QueryContext(t.ctx, t.books.text(query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, rows.Err()
}

// write runs a statement and returns the number of rows that it matched.
func (t *tx) write(statement string, args ...any) (int, error) {
	res, err := t.tx.ExecContext(t.ctx, t.books.text(statement), args...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}
