// Package pages reads the pages of a driver.Operator.
package pages

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/leasehold-go/leasehold/driver"
)

// Fill is [driver.Operator.List], except that every page but the last has limit states. If the
// engine fails or ctx ends after some progress, the page has the states up to then, and the next
// call continues.
func Fill(ctx context.Context, op driver.Operator, prefix, after string, limit int) (states []driver.State, next string, err error) {
	var damaged error
	for began := after; ; {
		some, next, err := op.List(ctx, prefix, after, limit-len(states))
		switch {
		case err == nil:
		case errors.Is(err, driver.ErrCorrupt):
			damaged = errors.Join(damaged, err)
		case after == began:
			return nil, "", err
		default:
			return states, after, damaged
		}
		states = merge(states, some)
		if next == "" || len(states) >= limit {
			return states, next, damaged
		}
		after = next
	}
}

// Damage returns the error of a List from the errors of its resources: the first that is not
// [driver.ErrCorrupt], or else all of them.
func Damage(errs []error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return err
		}
	}
	return errors.Join(errs...)
}

// merge returns the states of both by name, each name once.
func merge(a, b []driver.State) []driver.State {
	if len(a) == 0 {
		return b
	}
	a = append(a, b...)
	slices.SortStableFunc(a, func(x, y driver.State) int { return cmp.Compare(x.Resource, y.Resource) })
	return slices.CompactFunc(a, func(x, y driver.State) bool { return x.Resource == y.Resource })
}

// Errors returns the errors that [errors.Join] has joined in err.
func Errors(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var each []error
	for _, one := range joined.Unwrap() {
		each = append(each, Errors(one)...)
	}
	if errors.Join(each...).Error() != err.Error() { // err wraps several errors, but did not come from Join
		return []error{err}
	}
	return each
}
