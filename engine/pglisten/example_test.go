package pglisten_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// On PostgreSQL waiters are woken at once, where LISTEN reaches the server.
func ExampleNew() {
	ctx := context.Background()
	const url = "postgres://locker@db.internal/shop"
	db, err := sql.Open("pgx", url) // import _ "github.com/jackc/pgx/v5/stdlib"
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	wakes, err := pglisten.New(url) // optional: without it waiters poll
	if err != nil {
		log.Fatal(err)
	}
	d, err := sqllock.NewPostgres(db, &sqllock.Options{Listen: wakes})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	if err := d.Migrate(ctx); err != nil { // any number of processes may do so at once
		log.Fatal(err)
	}
	locks, err := leasehold.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = locks.Do(ctx, "orders/42", func(ctx context.Context) error {
		fmt.Println("shipping order 42") // stop when ctx ends: the lease is over
		return nil
	})
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another process may have shipped it meanwhile: roll back")
	}
}
