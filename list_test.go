package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// damaged shows pages of one, of which some are damaged, and fails after the last.
type damaged struct {
	*memory.Driver
	fails error
	calls int
}

func (d *damaged) List(ctx context.Context, prefix, after string, _ int) ([]driver.State, string, error) {
	d.calls++
	states, next, err := d.Driver.List(ctx, prefix, after, 1)
	if err == nil && len(states) == 1 && states[0].Resource == "b" {
		return nil, next, errors.Join(fmt.Errorf("b: %w", driver.ErrCorrupt), fmt.Errorf("bb: %w", driver.ErrCorrupt))
	}
	if next == "" && d.fails != nil {
		return nil, "", d.fails
	}
	return states, next, err
}

// A damaged name is an element of the list, which goes on; any other error is the last one.
func TestListGoesOnAfterDamage(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for _, fails := range []error{nil, away} {
		d := &damaged{Driver: memory.New(), fails: fails}
		l, err := leasehold.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, name := range []string{"a", "b", "c", "d"} {
			if _, err := l.Acquire(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		var names string
		var corrupt, failed int
		for state, err := range l.List(t.Context(), "") {
			switch {
			case errors.Is(err, driver.ErrCorrupt):
				corrupt++
			case err != nil:
				failed++
				if !errors.Is(err, away) {
					t.Errorf("the list ends with %v", err)
				}
			default:
				names += state.Resource
			}
		}
		want := "acd"
		if fails != nil {
			want = "ac"
		}
		if names != want || corrupt != 2 || failed == 1 != (fails != nil) {
			t.Errorf("%q, %d damaged, %d failures; want %q and 2", names, corrupt, failed, want)
		}
		d.calls = 0
		for range l.List(t.Context(), "") {
			break
		}
		if d.calls != 1 {
			t.Errorf("a loop that is left at the first name has asked for %d pages", d.calls)
		}
		page, err := l.Page(t.Context(), leasehold.PageOptions{Limit: 3})
		if !errors.Is(err, driver.ErrCorrupt) || fails == nil && len(page.States) != 3 || fails != nil && (len(page.States) != 2 || page.Next == "") {
			t.Errorf("a page: %v, %v", page, err)
		}
	}
	l, err := leasehold.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Page(t.Context(), leasehold.PageOptions{Limit: -1}); !errors.Is(err, leasehold.ErrInvalidOption) {
		t.Errorf("a negative limit: %v", err)
	}
}
