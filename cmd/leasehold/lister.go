package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/stores"
)

// listPage is the number of locks that ls asks for at once.
const listPage = 500

// A lister prints a list page by page or, if it is sorted, when it is complete.
type lister struct {
	prefix string
	after  string // value of --after
	limit  int    // 0: all
	csv    bool
	selection

	a       *app
	table   table
	seen    map[[16]byte]bool // hashes of the names that were read, because an engine may return a name twice
	found   int               // number of selected locks so far
	kept    []stateView       // locks to be sorted
	printed bool              // part of the output was printed: the heads, or the beginning of an array
}

// list prints pages until the list ends, or the limit is reached.
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
			if err := l.take(page.States); err != nil {
				return err
			}
			next = page.Next
			more = next != "" && (l.limit == 0 || l.sort != "" || l.found < l.limit)
			if !more {
				return errors.Join(damaged, l.end(next, damaged == nil))
			}
		}
		return nil
	})
}

// stream opens the store and calls do. It limits the time for opening and closing, but not for do,
// which limits each call itself.
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
	defer abandon.Within(time.Second, done)
	return orSignal(ctx, do(ctx, locks))
}

// page returns the next locks, up to the last one that may be listed.
func (l *lister) page(ctx context.Context, locks *leasehold.Locker, after string) (leasehold.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	limit := listPage
	if l.limit > 0 && l.sort == "" && !l.filters() {
		limit = min(limit, l.limit-l.found)
	}
	for {
		page, err := locks.Page(ctx, leasehold.PageOptions{Prefix: l.prefix, After: after, Limit: limit})
		last := l.last(page.States)
		if err != nil && !errors.Is(err, driver.ErrCorrupt) || last == len(page.States)-1 {
			return page, err
		}
		limit = last + 1 // so that Next of the page continues after it
	}
}

// last returns the index of the last of states that the limit allows.
func (l *lister) last(states []leasehold.State) int {
	if l.limit > 0 && l.sort == "" && l.filters() {
		found := l.found
		for i, s := range states {
			if l.seen[nameHash(s.Resource)] || !l.has(viewOf(s)) {
				continue
			}
			if found++; found == l.limit {
				return i
			}
		}
	}
	return len(states) - 1
}

// nameHash returns a short hash of a name, because there may be many names.
func nameHash(name string) [16]byte {
	sum := sha256.Sum256([]byte(name))
	return [16]byte(sum[:])
}

// take prints the new states that are selected, or keeps them to be sorted.
func (l *lister) take(states []leasehold.State) error {
	var views []stateView
	for _, s := range states {
		hash := nameHash(s.Resource)
		if l.seen[hash] {
			continue
		}
		l.seen[hash] = true
		if v := viewOf(s); l.has(v) {
			views = append(views, v)
		}
	}
	l.found += len(views)
	if l.sort == "" {
		return l.print(views)
	}
	if l.kept = append(l.kept, views...); len(l.kept) > watchMost {
		return usageErrorf("more than %d locks are to be sorted: give a PREFIX, which fewer begin with, or leave out --sort", watchMost)
	}
	return nil
}

func (l *lister) print(views []stateView) error {
	var b bytes.Buffer
	if !l.a.json && !l.csv {
		l.table.write(&b, views)
	}
	if l.csv {
		writeCSV(&b, views, !l.printed)
		l.printed = true
	}
	for _, v := range views {
		first := !l.printed
		l.printed = true
		if !l.a.json {
			continue
		}
		between := ",\n  "
		if first {
			between = "[\n  "
		}
		b.WriteString(between)
		if err := writeJSONWithin(&b, v, "  ", "  "); err != nil {
			return err
		}
		b.Truncate(b.Len() - 1) // its newline
	}
	if b.Len() == 0 {
		return nil
	}
	return l.a.output(b.Bytes())
}

// end completes the output, and reports how to continue the list. sound means that everything could
// be read: otherwise locks that are not listed may be held.
func (l *lister) end(next string, sound bool) error {
	if l.sort != "" {
		l.arrange(l.kept)
		if l.limit > 0 {
			l.kept = l.kept[:min(l.limit, len(l.kept))]
		}
		if err := l.print(l.kept); err != nil {
			return err
		}
	}
	switch {
	case l.a.json && l.printed:
		if err := l.a.output([]byte("\n]\n")); err != nil {
			return err
		}
	case !sound:
	case l.a.json:
		if err := l.a.output([]byte("[]\n")); err != nil {
			return err
		}
	case !l.printed && next == "" && l.after == "" && !l.filters():
		// On stderr, so that scripts that count lines count none.
		which := ""
		if l.prefix != "" {
			which = " whose name starts with " + shown(l.prefix)
		}
		fmt.Fprintf(l.a.stderr, "No lock%s is held or waited for in %s\n", which, stores.Redact(l.a.storeURL))
	}
	if l.any() {
		l.a.tell(onLooked, "", 0, "%s", l.looked(len(l.seen), l.found, sound && next == "" && l.after == ""))
	}
	if next != "" {
		l.a.more(base64.RawURLEncoding.EncodeToString([]byte(next)))
	}
	return nil
}
