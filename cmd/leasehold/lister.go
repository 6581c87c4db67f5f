package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/stores"
)

// listPage is how many locks ls asks for at once.
const listPage = 500

// A lister prints a list as it comes.
type lister struct {
	prefix string
	after  string // as --after says
	limit  int    // 0: all

	a       *app
	table   table
	seen    map[[16]byte]bool // hashes of the names that were printed, which an engine may tell twice
	printed bool              // something was: with --json the array was begun
}

// list prints pages until there are no more, or there is no more to be listed.
func (l *lister) list(ctx context.Context, a *app) error {
	after, err := base64.RawURLEncoding.DecodeString(l.after)
	if err != nil {
		return usageErrorf("--after %s: want what an earlier ls has told", shown(l.after))
	}
	l.a, l.seen, l.table = a, make(map[[16]byte]bool), table{width: widthOf(a.stdout)}
	return a.stream(ctx, func(ctx context.Context, locks *leasehold.Locker) error {
		var damaged error
		for next, more := string(after), true; more; {
			page, err := l.page(ctx, locks, next)
			if err != nil && !errors.Is(err, driver.ErrCorrupt) {
				return errors.Join(damaged, err)
			}
			damaged = errors.Join(damaged, err)
			if err := l.print(page.States); err != nil {
				return err
			}
			next = page.Next
			more = next != "" && (l.limit == 0 || len(l.seen) < l.limit)
			if !more {
				return errors.Join(damaged, l.end(next))
			}
		}
		return nil
	})
}

// stream opens the store, which is bounded, and calls do, which bounds its calls by itself.
func (a *app) stream(ctx context.Context, do func(ctx context.Context, locks *leasehold.Locker) error) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	locks, done, err := a.locker(ctx, func(ctx context.Context, url string) (driver.Driver, error) {
		ctx, cancel := context.WithTimeout(ctx, answerBound)
		defer cancel()
		return stores.OpenExisting(ctx, url)
	}, nil)
	if err != nil {
		return orSignal(ctx, err)
	}
	err = orSignal(ctx, do(ctx, locks))
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	quit(ending, done)
	return err
}

func (l *lister) page(ctx context.Context, locks *leasehold.Locker, after string) (leasehold.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	limit := listPage
	if l.limit > 0 {
		limit = min(limit, l.limit-len(l.seen))
	}
	return locks.Page(ctx, leasehold.PageOptions{Prefix: l.prefix, After: after, Limit: limit})
}

// print prints those states that were not printed yet.
func (l *lister) print(states []leasehold.State) error {
	var views []stateView
	for _, s := range states {
		sum := sha256.Sum256([]byte(s.Resource))
		hash := [16]byte(sum[:])
		if !l.seen[hash] {
			l.seen[hash] = true
			views = append(views, viewOf(s))
		}
	}
	var b bytes.Buffer
	if !l.a.json {
		l.table.write(&b, views)
	}
	for _, v := range views {
		l.printed = true
		if !l.a.json {
			continue
		}
		between := ",\n  "
		if len(l.seen) == len(views) && b.Len() == 0 {
			between = "[\n  "
		}
		b.WriteString(between)
		if err := writeElement(&b, v); err != nil {
			return err
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return l.a.output(b.Bytes())
}

// writeElement writes an element of an array that is indented.
func writeElement(w io.Writer, v any) error {
	var b bytes.Buffer
	err := writeJSONWithin(&b, v, "  ", "  ")
	if err == nil {
		_, err = w.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	}
	return err
}

// end ends what was printed, and says how to go on after it.
func (l *lister) end(next string) error {
	switch {
	case l.a.json && l.printed:
		if err := l.a.output([]byte("\n]\n")); err != nil {
			return err
		}
	case l.a.json:
		if err := l.a.output([]byte("[]\n")); err != nil {
			return err
		}
	case !l.printed && next == "" && l.after == "":
		// On stderr, so that a script that counts lines counts none.
		which := ""
		if l.prefix != "" {
			which = " whose name starts with " + shown(l.prefix)
		}
		fmt.Fprintf(l.a.stderr, "No lock%s is held or waited for in %s\n", which, stores.Redact(l.a.storeURL))
	}
	if next != "" {
		l.a.more(base64.RawURLEncoding.EncodeToString([]byte(next)))
	}
	return nil
}
