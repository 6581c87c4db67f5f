package pages_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pages"
)

// A book has pages of its own lengths, whatever the limit, or errors in their place.
type book struct {
	driver.Operator
	pages [][]string
	errs  map[int]error
	asked []int // the limits
}

func (b *book) List(_ context.Context, _, after string, limit int) (states []driver.State, next string, err error) {
	b.asked = append(b.asked, limit)
	n := 0
	if after != "" {
		n, _ = strconv.Atoi(after)
	}
	err = b.errs[n]
	if err != nil && !errors.Is(err, driver.ErrCorrupt) {
		return nil, "", err
	}
	for _, name := range b.pages[n] {
		states = append(states, driver.State{Resource: name})
	}
	if n++; n < len(b.pages) {
		next = strconv.Itoa(n)
	}
	return states, next, err
}

// A page is filled from short and empty ones, sorted, each name once. Damage is reported. A failure
// after some progress is left to the next call.
func TestFill(t *testing.T) {
	t.Parallel()
	away, damaged := errors.New("away"), fmt.Errorf("n: %w", driver.ErrCorrupt)
	for _, c := range []struct {
		what  string
		pages [][]string
		errs  map[int]error
		limit int
		names []string
		next  string
		err   error
	}{
		{"one page", [][]string{{"a", "b"}}, nil, 2, []string{"a", "b"}, "", nil},
		{"short and empty pages", [][]string{{"c"}, {}, {"a", "b"}, {"d"}}, nil, 3, []string{"a", "b", "c"}, "3", nil},
		{"a name twice", [][]string{{"a", "b"}, {"a"}, {"c"}}, nil, 3, []string{"a", "b", "c"}, "", nil},
		{"a failure at once", [][]string{{"a"}}, map[int]error{0: away}, 3, nil, "", away},
		{"a failure after some", [][]string{{"a"}, {"b"}}, map[int]error{1: away}, 3, []string{"a"}, "1", nil},
		{"a failure after nothing but progress", [][]string{{}, {"b"}}, map[int]error{1: away}, 3, nil, "1", nil},
		{"damage", [][]string{{"a"}, {"b"}}, map[int]error{0: damaged}, 3, []string{"a", "b"}, "", driver.ErrCorrupt},
		{"damage, and then a failure", [][]string{{}, {"b"}}, map[int]error{0: damaged, 1: away}, 3, nil, "1", driver.ErrCorrupt},
	} {
		b := &book{pages: c.pages, errs: c.errs}
		states, next, err := pages.Fill(t.Context(), b, "", "", c.limit)
		var names []string
		for _, st := range states {
			names = append(names, st.Resource)
		}
		if !slices.Equal(names, c.names) || next != c.next || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %q, %q, %v; want %q, %q, %v", c.what, names, next, err, c.names, c.next, c.err)
		}
		for i, limit := range b.asked {
			if limit > c.limit || limit < 1 {
				t.Errorf("%s: call %d asks for %d", c.what, i, limit)
			}
		}
	}
}

// Joined errors are taken apart. An error that wraps several stays whole.
func TestErrors(t *testing.T) {
	t.Parallel()
	one, other := errors.New("one"), fmt.Errorf("%w: %w", errors.New("two"), driver.ErrCorrupt)
	for _, c := range []struct {
		err  error
		want []error
	}{
		{nil, nil}, {one, []error{one}}, {other, []error{other}},
		{errors.Join(one, other), []error{one, other}}, {errors.Join(errors.Join(one, other), one), []error{one, other, one}},
	} {
		if got := pages.Errors(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
