package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/memory"
)

// A guard in memory refuses whoever comes with a smaller token than the last one.
func ExampleMemory_Do() {
	var guard fence.Memory // beside what it guards, not beside the lock
	write := func(who string, token uint64) {
		lease := fence.LeaseOf("stock", token, who)
		err := guard.Do(lease, func() error { return nil })
		fmt.Println(who, "is refused:", errors.Is(err, fence.ErrStale))
	}
	write("first", 1024)
	write("second", 2048)
	write("first", 1024) // it was paused
	// Output:
	// first is refused: false
	// second is refused: false
	// first is refused: true
}

// Tokens of the engine that a service moved to may be smaller: an epoch puts them above.
func ExampleInEpoch() {
	var guard fence.Memory
	former, present := fence.LeaseOf("stock", 1_700_000_000_000, "a"), fence.LeaseOf("stock", 1024, "b")
	write := func() error { return nil }
	fmt.Println(guard.Do(former, write))
	fmt.Println(guard.Do(fence.InEpoch(present, 1), write))
	fmt.Println(errors.Is(guard.Do(former, write), fence.ErrStale))
	// Output:
	// <nil>
	// <nil>
	// true
}

// The guard is a row in the database that is written to, checked in the transaction that writes.
func ExampleSQL_Check() {
	var db *sql.DB // of the stock
	ctx := context.Background()
	guard, err := fence.NewSQL(fence.Postgres, "")
	if err != nil {
		log.Fatal(err)
	}
	if err := guard.Migrate(ctx, db); err != nil { // once, at the start
		log.Fatal(err)
	}
	reserve := func(lease *leasehold.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Check(ctx, tx, lease); err != nil { // ErrStale: a later holder was here
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE sku = 42"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = reserve
}

// The effect of a job happens once, although its holder may die half-way and another begin it
// again: it is in one transaction with the note that it happened.
func ExampleOnce_Do() {
	var db *sql.DB // of the orders
	ctx := context.Background()
	locks, err := leasehold.New(memory.New(), nil) // any engine with fencing
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	guard, err := fence.NewSQL(fence.Postgres, "")
	if err != nil {
		log.Fatal(err)
	}
	once, err := fence.NewOnce(guard, "")
	if err != nil {
		log.Fatal(err)
	}
	if err := once.Migrate(ctx, db); err != nil { // once, at the start
		log.Fatal(err)
	}
	ship := func() error {
		return locks.Do(ctx, "orders/42", func(ctx context.Context) error {
			lease, _ := leasehold.FromContext(ctx)
			err := once.Do(ctx, db, "order-42/ship", lease, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE orders SET shipped = true WHERE id = 42")
				return err
			})
			if errors.Is(err, fence.ErrDone) {
				return nil // before, by whomever
			}
			return err // of another error: call it again, it happens once
		})
	}
	_ = ship
}
