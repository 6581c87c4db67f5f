package leasehold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// plain denies weights and limits.
type plain struct{ *memory.Driver }

func (d plain) Features() driver.Features {
	f := d.Driver.Features()
	f.Weights, f.Limits = false, false
	return f
}

func TestWeightsAreChecked(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, err := New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		opts []Option
		want error
	}{
		{[]Option{Weight(0)}, ErrInvalidOption},
		{[]Option{Weight(-1)}, ErrInvalidOption},
		{[]Option{Weight(driver.MaxWeight + 1), Limit(driver.MaxWeight)}, ErrInvalidOption},
		{[]Option{Limit(2), Weight(3)}, ErrTooHeavy},
		{[]Option{Weight(3), Limit(2)}, ErrTooHeavy},
		{[]Option{For("a", Limit(2))}, ErrInvalidOption},
	} {
		if _, err := l.TryAcquire(ctx, "a", c.opts...); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	lease, err := l.TryAcquire(ctx, "a", Weight(3))
	if err != nil {
		t.Fatalf("a weight without a limit: %v", err)
	}
	if _, err := l.TryAcquire(ctx, "a"); !errors.Is(err, ErrBusy) {
		t.Errorf("Weight is shared: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	old, err := New(plain{memory.New()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if _, err := old.TryAcquire(ctx, "a", Weight(2)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a weight of 2 on an engine without weights: %v", err)
	}
	if lease, err := old.TryAcquire(ctx, "a", Weight(1)); err != nil {
		t.Errorf("a weight of 1 is no weight: %v", err)
	} else if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	for limit, want := range map[int]error{-1: ErrInvalidOption, driver.MaxWeight + 1: ErrInvalidOption, 2: nil, 0: nil} {
		if err := l.SetLimit(ctx, "a", limit); !errors.Is(err, want) {
			t.Errorf("SetLimit(%d): %v, want %v", limit, err, want)
		}
	}
	if err := l.SetLimit(ctx, "", 2); !errors.Is(err, ErrInvalidName) {
		t.Errorf("SetLimit without a name: %v", err)
	}
}

func TestEachNameHasItsOptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		d := memory.New()
		l, err := New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		take := func(tenant string, weight int, wait time.Duration) (*Leases, error) {
			return l.AcquireAll(ctx, nil, For(tenant, Limit(2)), For("total", Limit(8), Weight(weight)), Wait(wait))
		}
		var all []*Leases
		for _, tenant := range []string{"tenant/1", "tenant/1", "tenant/2"} {
			leases, err := take(tenant, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, leases)
		}
		st, err := l.Inspect(ctx, "total")
		if err != nil || st.Used() != 6 || st.Holders[0].Limit != 8 {
			t.Errorf("%d used, %v: %+v", st.Used(), err, st)
		}
		if _, err := take("tenant/1", 1, time.Second); !errors.Is(err, ErrBusy) {
			t.Errorf("a third of a tenant that may have two: %v", err)
		}
		if _, err := take("tenant/2", 3, time.Second); !errors.Is(err, ErrBusy) {
			t.Errorf("9 of 8: %v", err)
		}
		if st, err = l.Inspect(ctx, "tenant/2"); err != nil || st.Used() != 1 || len(st.Waiters) > 0 {
			t.Errorf("what was given up is held: %+v, %v", st, err)
		}
		go func() {
			time.Sleep(time.Minute)
			all[0].Release(context.WithoutCancel(ctx))
		}()
		leases, err := take("tenant/2", 3, time.Hour)
		if err != nil {
			t.Fatalf("who waits for room: %v", err)
		}
		for _, ls := range append(all[1:], leases) {
			if err := ls.Release(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestOptionsThatNoNameHasAlone(t *testing.T) {
	t.Parallel()
	l, err := New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, opt := range []Option{For("a", Wait(time.Second)), For("a", For("b")), For("a", OncePer(time.Hour)), For("a", nil), For("a", Limit(0)), For("a", Limit(1), Weight(2))} {
		if leases, err := l.AcquireAll(t.Context(), []string{"b"}, opt); err == nil {
			t.Error("it is accepted")
			leases.Release(t.Context())
		} else if !errors.Is(err, ErrInvalidOption) && !errors.Is(err, ErrTooHeavy) {
			t.Error(err)
		}
	}
	if _, err := l.AcquireAll(t.Context(), nil, For("")); !errors.Is(err, ErrInvalidName) {
		t.Errorf("For without a name: %v", err)
	}
}
