package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/sqllock"
)

// Processes of one machine share a file.
func ExampleNewSQLite() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "/var/lib/shop/locks.db") // import _ "modernc.org/sqlite"
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	d, err := sqllock.NewSQLite(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	if err := d.Migrate(ctx); err != nil { // creates the tables; any number of processes may do so at once
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

// Locks are kept beside the data of a service, on MySQL or MariaDB.
func ExampleNewMySQL() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "locker@tcp(db.internal)/shop") // import _ "github.com/go-sql-driver/mysql"
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	d, err := sqllock.NewMySQL(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	if err := d.Migrate(ctx); err != nil { // creates the tables; any number of processes may do so at once
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

// Where the data are in the database of the locks, a transaction checks the token itself.
func ExampleDriver_CheckFence() {
	ctx := context.Background()
	var db *sql.DB
	var d *sqllock.Driver // on db
	reserve := func(lease *leasehold.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := d.CheckFence(ctx, tx, lease); err != nil { // fence.ErrStale: a later holder was here
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE sku = 42"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = reserve
}
