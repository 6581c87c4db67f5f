package stores_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/stores"
)

// A program whose engine is configured opens it by its URL.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url := "sqlite:" + filepath.Join(dir, "locks.db") // or redis://…, postgres://…, from the configuration

	d, err := stores.Open(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
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
	// Output: shipping order 42
}

// What is printed of a URL has no password.
func ExampleRedact() {
	fmt.Println(stores.Redact("redis://locker:secret@lock.internal/0"))
	// Output: redis://***@lock.internal/0
}
