package polyglot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// Sell runs the seller that is written in Go.
func Sell(ctx context.Context, url, folder string) error {
	sell := func() (more bool, err error) { return sellOne(folder, 0, func() error { return meet(ctx, folder) }) }
	if url != "" {
		d, err := httplock.Connect(ctx, url, nil)
		if err != nil {
			return err
		}
		defer d.Close()
		locks, err := leasehold.New(d, &leasehold.Options{TTL: 30 * time.Second})
		if err != nil {
			return err
		}
		defer locks.Close()
		sell = func() (bool, error) { return sellUnderLock(ctx, locks, folder) }
	}
	if err := os.WriteFile(filepath.Join(folder, "ready.go"), nil, 0o600); err != nil {
		return err
	}
	if err := waitFor(ctx, filepath.Join(folder, "open")); err != nil {
		return err
	}
	for {
		if more, err := sell(); err != nil || !more {
			return err
		}
	}
}

// waitFor waits until a file exists.
func waitFor(ctx context.Context, path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if pause.For(ctx, 10*time.Millisecond) != nil {
			return context.Cause(ctx)
		}
	}
}

// meet waits until all sellers of a sale without a lock have read the stock.
func meet(ctx context.Context, folder string) error {
	looked := filepath.Join(folder, "looked.")
	return errors.Join(os.WriteFile(looked+"go", nil, 0o600), waitFor(ctx, looked+"python"), waitFor(ctx, looked+"shell"))
}

// sellUnderLock sells a piece, and reports whether there was one.
func sellUnderLock(ctx context.Context, locks *leasehold.Locker, folder string) (bool, error) {
	lease, err := locks.Acquire(ctx, stock, leasehold.Wait(time.Minute), leasehold.Note("go"))
	if err != nil {
		return false, err
	}
	more, err := sellOne(folder, lease.Token(), func() error { return nil })
	return more, errors.Join(err, lease.Release(ctx))
}

// sellOne sells a piece, and reports whether there was one. It calls meet after it has read the
// stock.
func sellOne(folder string, token uint64, meet func() error) (bool, error) {
	stock := filepath.Join(folder, "stock")
	text, err := os.ReadFile(stock)
	if err != nil {
		return false, err
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || left == 0 {
		return false, err
	}
	if err := meet(); err != nil {
		return false, err
	}
	time.Sleep(5 * time.Millisecond) // the time to pack the piece
	if err := os.WriteFile(stock+".go", []byte(strconv.Itoa(left-1)+"\n"), 0o600); err != nil {
		return false, err
	}
	if err := os.Rename(stock+".go", stock); err != nil {
		return false, err
	}
	sold, err := os.OpenFile(filepath.Join(folder, "sold"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return false, err
	}
	_, err = fmt.Fprintf(sold, "go %d\n", token)
	return true, errors.Join(err, sold.Close())
}
