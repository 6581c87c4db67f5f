package leasehold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pages"
)

const (
	// pageLimit is the default of PageOptions.Limit.
	pageLimit = 100
	// listLimit is the size of the pages that List asks for.
	listLimit = 500
)

// PageOptions select a part of a list. The zero value selects the first 100 resources.
type PageOptions struct {
	Prefix string // only names that start with Prefix; "": all
	After  string // Page.Next of the previous page with the same Prefix, also of another process; "": the first page
	Limit  int    // at most this many States; 0: 100
}

// A Page is a part of a list.
type Page struct {
	States []State // sorted by name if the engine can sort
	Next   string  // PageOptions.After for the next page; "": this is the last
}

// Page returns one page of the resources with holders or waiters. Every page but the last has Limit
// States. If ctx ends or the engine fails after the call has made progress, the page has what was
// read until then, and the error is nil: continue at Next. Pages are sorted by name if the engine
// can sort. Otherwise they are in the engine's order, and a name may appear on several pages. A
// resource that is in use throughout appears on at least one, but for exceptions that the engine's
// page lists. There is no total count.
//
// If the data of some resources is damaged, an error that matches [driver.ErrCorrupt] names
// them, and the page has all others. After any other error the page is empty, and the call may
// be repeated. [ErrInvalidOption] means that Limit is negative, [ErrUnsupported] that the engine
// cannot list.
func (l *Locker) Page(ctx context.Context, opts PageOptions) (Page, error) {
	if opts.Limit < 0 {
		return Page{}, wrap("list", opts.Prefix, fmt.Errorf("%w: a limit of %d", ErrInvalidOption, opts.Limit))
	}
	if l.operator == nil {
		return Page{}, wrap("list", opts.Prefix, ErrUnsupported)
	}
	opts.Limit = cmp.Or(opts.Limit, pageLimit)
	states, next, err := pages.Fill(ctx, l.operator, opts.Prefix, opts.After, opts.Limit)
	page := Page{Next: next}
	for _, s := range states {
		page.States = append(page.States, stateOf(s))
	}
	return page, wrap("list", opts.Prefix, err)
}

// List yields all resources with holders or waiters whose names start with prefix; "" means all.
// It asks the engine for one page at a time, as the loop proceeds. The loop may stop at any
// point, and no list is kept in memory. [Locker.Page] describes the order and which resources
// appear.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		if l.operator == nil {
			yield(State{}, wrap("list", prefix, ErrUnsupported))
			return
		}
		for after, more := "", true; more; more = after != "" {
			states, next, err := l.operator.List(ctx, prefix, after, listLimit)
			for _, s := range states {
				if !yield(stateOf(s), nil) {
					return
				}
			}
			for _, one := range pages.Errors(err) {
				if !yield(State{}, wrap("list", prefix, one)) {
					return
				}
			}
			if err != nil && !errors.Is(err, driver.ErrCorrupt) {
				return
			}
			after = next
		}
	}
}
