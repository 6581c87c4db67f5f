package seckill

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/stores"
	"github.com/leasehold-go/leasehold/fence"
)

// A shop keeps its stock and its sales in an SQLite file of its own, which knows nothing
// of the lock but the greatest token that was shown to it.
type shop struct {
	db    *sql.DB
	guard *fence.SQL
}

// openShop opens the shop's file, which it creates if it is missing.
func openShop(ctx context.Context, path string) (*shop, error) {
	guard, err := fence.NewSQL("")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", stores.SQLiteDSN(path))
	if err != nil {
		return nil, fmt.Errorf("open the shop: %w", err)
	}
	db.SetMaxOpenConns(4) // for each process: buyers that think need none
	s := &shop{db, guard}
	if err := s.migrate(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("open the shop: %w", err)
	}
	return s, nil
}

func (s *shop) migrate(ctx context.Context) error {
	for _, q := range []string{
		`PRAGMA journal_mode = WAL`,
		`CREATE TABLE IF NOT EXISTS shelf (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS sales (buyer INTEGER NOT NULL, item TEXT NOT NULL)`,
	} {
		if _, err := s.db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return s.guard.Migrate(ctx, s.db)
}

func (s *shop) close() error { return s.db.Close() }

const item = "phone"

// fill starts a sale: stock pieces and no sales.
func (s *shop) fill(ctx context.Context, stock int) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO shelf VALUES (?, ?)`, item, stock)
	if err != nil {
		return fmt.Errorf("fill the shelf: %w", err)
	}
	return nil
}

// count reads the books.
func (s *shop) count(ctx context.Context) (sold, left int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM sales), pieces FROM shelf WHERE item = ?`, item).Scan(&sold, &left)
	if err != nil {
		return 0, 0, fmt.Errorf("count the sales: %w", err)
	}
	return sold, left, nil
}

// A ticket is what a buyer shows to the shop: the lease it buys under, or nothing.
type ticket struct {
	resource, owner string
	token           uint64
}

// sell is the naive purchase: read the stock, think, write it back. It returns whether
// the buyer got a piece; after an error it got none. With a ticket both steps show it, so
// that a buyer whose lease went to another meanwhile gets fence.ErrStale. To show it only
// when writing is not enough: the write of the former holder could then slip in between
// the read and the write of the present one.
func (s *shop) sell(ctx context.Context, buyer int, t *ticket) (bool, error) {
	pieces, err := s.stock(ctx, t)
	if err != nil || pieces <= 0 {
		return false, err
	}
	if err := think(ctx); err != nil {
		return false, err
	}
	err = s.step(ctx, t, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE shelf SET pieces = ? WHERE item = ?`, pieces-1, item); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sales VALUES (?, ?)`, buyer, item)
		return err
	})
	return err == nil, err
}

const selectStock = `SELECT pieces FROM shelf WHERE item = ?`

func (s *shop) stock(ctx context.Context, t *ticket) (pieces int, err error) {
	if t == nil {
		err = s.db.QueryRowContext(ctx, selectStock, item).Scan(&pieces)
		return pieces, err
	}
	err = s.step(ctx, t, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, selectStock, item).Scan(&pieces)
	})
	return pieces, err
}

// step runs a step in a transaction, which checks the ticket first.
func (s *shop) step(ctx context.Context, t *ticket, do func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	if t != nil {
		if err := s.guard.Check(ctx, tx, t.resource, t.token, t.owner); err != nil {
			return err
		}
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Thinking is what the naive shop does between its two steps: ask for the price, the
// address, the payment. It is long against the steps, as it is in life.
const thinkLeast, thinkMost = 10 * time.Millisecond, 30 * time.Millisecond

func think(ctx context.Context) error {
	select {
	case <-time.After(thinkLeast + rand.N(thinkMost-thinkLeast)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
