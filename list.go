package leasehold

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pages"
)

const (
	// pageLimit is that of a page whose caller names none.
	pageLimit = 100
	// listLimit is that of the pages of List.
	listLimit = 500
)

// PageOptions say which part of a list a Page is. The zero PageOptions are the first 100 of all.
type PageOptions struct {
	Prefix string // only names that start with it; "": all
	After  string // Page.Next of the page before, for the same Prefix, from whatever process; "": the first
	Limit  int    // most States in the page; 0: 100
}

// A Page is a part of a list.
type Page struct {
	States []State // by name
	Next   string  // what PageOptions.After is for the next page; "": this is the last
}

// Page returns one page of the resources with holders or waiters. One that is not the last has Limit
// States, or fewer if ctx ended or the engine failed while it was being filled: Next is where to go on. Pages
// follow each other by name where the engine can sort; elsewhere in the engine's order, and a name may
// come on several. A resource that is in use throughout comes on one at least. No page tells how many
// there are in all.
//
// Those that somebody has damaged are named by an error that matches [driver.ErrCorrupt], beside a page
// that has all others. After any other error the page is empty, and the same call may be repeated.
// [ErrInvalidOption]: Limit is negative. [ErrUnsupported]: the engine does not show what it keeps.
func (l *Locker) Page(ctx context.Context, opts PageOptions) (Page, error) {
	if opts.Limit < 0 {
		return Page{}, wrap("list", opts.Prefix, fmt.Errorf("%w: a limit of %d", ErrInvalidOption, opts.Limit))
	}
	if l.operator == nil {
		return Page{}, wrap("list", opts.Prefix, ErrUnsupported)
	}
	if opts.Limit == 0 {
		opts.Limit = pageLimit
	}
	states, next, err := pages.Fill(ctx, l.operator, opts.Prefix, opts.After, opts.Limit)
	page := Page{Next: next}
	for _, s := range states {
		page.States = append(page.States, stateOf(s))
	}
	return page, wrap("list", opts.Prefix, err)
}

// List tells of all resources with holders or waiters whose names start with prefix; "" is all. It asks
// the engine for a page at a time, when the loop comes to it, so that it may be left at any point and
// keeps no list in memory. The order, and which resources come, are as [Locker.Page] says.
//
// One that somebody has damaged comes as an error that matches [driver.ErrCorrupt], with an empty State,
// and the loop goes on. Any other error, such as that of a ctx that ended, is the last element.
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
