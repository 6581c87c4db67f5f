package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/memory"
)

// damagedAt is a node that cannot show some names.
type damagedAt struct {
	*memory.Driver
	errs map[string]error
}

func (d *damagedAt) Inspect(ctx context.Context, name string) (driver.State, error) {
	if err := d.errs[name]; err != nil {
		return driver.State{}, err
	}
	return d.Driver.Inspect(ctx, name)
}

// A damaged name hides no other from a list in pages. If another name cannot be looked at, the list fails.
func TestPagesShowWhatIsBesideDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := make(map[string]error)
		var nodes []driver.Driver
		for range 3 {
			nodes = append(nodes, &damagedAt{memory.New(), errs})
		}
		d, err := quorum.New(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for i := range 4 {
			claim, err := d.Claim(driver.Request{Resource: fmt.Sprint("n/", i), Owner: fmt.Sprint("holder ", i), TTL: time.Hour})
			if err == nil {
				_, err = claim.Try(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		errs["n/0"] = fmt.Errorf("n/0: %w", driver.ErrCorrupt)
		var names []string
		damaged := false
		for after, more := "", true; more; more = after != "" {
			states, next, err := d.List(t.Context(), "n/", after, 2)
			if err != nil && !errors.Is(err, driver.ErrCorrupt) {
				t.Fatal(err)
			}
			for _, st := range states {
				names = append(names, st.Resource)
			}
			after, damaged = next, damaged || err != nil
		}
		slices.Sort(names)
		if names = slices.Compact(names); !slices.Equal(names, []string{"n/1", "n/2", "n/3"}) || !damaged {
			t.Errorf("listed %q, damaged: %v; want the three others, and ErrCorrupt", names, damaged)
		}

		errs["n/1"] = errors.New("no answer")
		if states, _, err := d.List(t.Context(), "n/", "", 2); err == nil || errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("List that cannot look at n/1: %+v, %v; want an error that is not ErrCorrupt", states, err)
		}
	})
}

// An unfit node has answered its check.
type unfit struct{ *memory.Driver }

func (unfit) Check(context.Context) ([]driver.Finding, error) { return nil, errors.New("too old") }
func (unfit) Rehearse(context.Context) error                  { return nil }

// A node whose check fails may well answer: it may be too old, or refuse the password.
func TestCheckSaysWhatFailed(t *testing.T) {
	t.Parallel()
	d, err := quorum.New([]driver.Driver{memory.New(), unfit{memory.New()}, memory.New()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	found, err := d.Check(t.Context())
	if err != nil || len(found) == 0 || found[0].Where != "node 2" || found[0].Text != "its check failed: too old" {
		t.Errorf("Check: %+v, %v; want a check of node 2 that failed", found, err)
	}
}
