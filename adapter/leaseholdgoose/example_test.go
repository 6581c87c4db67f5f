package leaseholdgoose_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/pressly/goose/v3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgoose"
)

// A service migrates its database when it starts, on as many machines as there are.
func Example() {
	var db *sql.DB              // to be migrated
	var locks *leasehold.Locker // on any engine
	locker := leaseholdgoose.New(locks, "shop/migrations")
	provider, err := goose.NewProvider(goose.DialectMySQL, db, os.DirFS("migrations"), goose.WithLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := leaseholdgoose.Stoppable(context.Background()) // ends when the lease is lost
	defer stop()
	_, err = provider.Up(ctx)
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("another may migrate meanwhile: look at the database")
	}
}
