package seckill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asBuyers makes this test binary a process of buyers.
const asBuyers = "LEASEHOLD_TEST_BUYERS"

func TestMain(m *testing.M) {
	if os.Getenv(asBuyers) == "" {
		os.Exit(m.Run())
	}
	if err := Work(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func newRunner(t *testing.T, s Sale) *Runner {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return &Runner{Sale: s, Dir: t.TempDir(), Worker: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), asBuyers+"=1", "GORACE=atexit_sleep_ms=0") // its default of a second for each process tells nothing more
		return cmd
	}}
}

func (r *Runner) lockFile() string { return "sqlite:" + filepath.Join(r.Dir, "locks.db") }

func TestOversoldWithoutLock(t *testing.T) {
	for _, s := range []Sale{{30, 5, 3}, {2, 1, 2}, {30, 29, 3}} {
		r := newRunner(t, s)
		res, err := r.Run(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if res.Oversold < 1 || res.Sold != s.Stock+res.Oversold || s.Right(res) {
			t.Errorf("%+v: %+v, want it oversold", s, res)
		}
		if res.WaitP50 < milliseconds(thinkLeast) || res.WaitP99 < res.WaitP50 || res.Total < res.WaitP99-1 {
			t.Errorf("%+v: impossible times: %+v", s, res)
		}
	}
}

func TestExactlyTheStockUnderTheLock(t *testing.T) {
	for _, s := range []Sale{{30, 5, 3}, {1, 1, 1}, {4, 9, 4}, {7, 7, 2}} {
		r := newRunner(t, s)
		seen := 0
		r.Progress = func(served, sold int) {
			if seen++; served != seen || sold > s.Stock {
				t.Errorf("progress %d, %d is out of order", served, sold)
			}
		}
		res, err := r.Run(t.Context(), r.lockFile())
		if err != nil {
			t.Fatal(err)
		}
		if !s.Right(res) {
			t.Errorf("%+v: %+v, want exactly the stock sold", s, res)
		}
		if seen != s.Buyers {
			t.Errorf("%d reports of progress, want %d", seen, s.Buyers)
		}
	}
}

// The write of a holder that was overtaken must not slip in, even when its successor has
// only read so far.
func TestOvertakenBuyerSellsNothing(t *testing.T) {
	ctx := t.Context()
	s, err := openShop(ctx, filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.fill(ctx, 2); err != nil {
		t.Fatal(err)
	}
	old, present := &ticket{"r", "a", 5}, &ticket{"r", "b", 6}
	if _, err := s.stock(ctx, old); err != nil {
		t.Fatal(err)
	}
	if _, err := s.stock(ctx, present); err != nil {
		t.Fatal(err)
	}
	if sold, err := s.sell(ctx, 1, old); sold || err == nil {
		t.Errorf("overtaken buyer: sold %v, %v", sold, err)
	}
	if sold, err := s.sell(ctx, 2, present); !sold || err != nil {
		t.Errorf("present buyer: sold %v, %v", sold, err)
	}
	if sold, left, err := s.count(ctx); sold != 1 || left != 1 || err != nil {
		t.Errorf("%d sold, %d left, %v", sold, left, err)
	}
}

func TestBuyersEndWithTheirParent(t *testing.T) {
	r := newRunner(t, Sale{1, 1, 1})
	w, err := r.start(t.Context(), order{Shop: filepath.Join(r.Dir, "shop.db"), Buyers: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.in.Close() // what the kernel does when the parent dies
	said := make(chan message, 10)
	ended := make(chan error, 1)
	go func() { ended <- w.hear(said) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("ended well without a sale")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still there")
	}
}

func TestEndOfContextEndsTheSale(t *testing.T) {
	r := newRunner(t, Sale{200, 200, 2})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	r.Progress = func(served, _ int) { cancel(why) }
	res, err := r.Run(ctx, r.lockFile())
	if !errors.Is(err, why) || res != (Result{}) {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestWorkerThatFailsIsReported(t *testing.T) {
	r := newRunner(t, Sale{4, 2, 2})
	_, err := r.Run(t.Context(), "sqlite:/nonexistent/folder/locks.db")
	if err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("got %v, want what the process said", err)
	}
	r.Worker = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/nonexistent") }
	if _, err := r.Run(t.Context(), ""); err == nil {
		t.Error("a program that is missing is no error")
	}
}

func TestSaleBounds(t *testing.T) {
	for _, s := range []Sale{{0, 5, 1}, {-1, 5, 1}, {maxBuyers + 1, 5, 3}, {30, 0, 3}, {30, -5, 3}, {30, maxStock + 1, 3}, {30, 5, 0}, {3, 5, 4}, {100, 5, maxProcesses + 1}} {
		if err := s.Check(); !errors.Is(err, ErrSale) {
			t.Errorf("%+v: %v, want ErrSale", s, err)
		}
	}
	for _, s := range []Sale{{30, 5, 3}, {1, 1, 1}, {64, 1, 64}} {
		total := 0
		for i := range s.Processes {
			total += s.share(i)
		}
		if err := s.Check(); err != nil || total != s.Buyers {
			t.Errorf("%+v: %v, %d buyers served", s, err, total)
		}
	}
}

func TestQuantile(t *testing.T) {
	var waits []time.Duration
	for i := range 100 {
		waits = append(waits, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 100, 0: 1} {
		if got := quantile(waits, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 || quantile(waits[:1], 0.99) != 1 {
		t.Error("few values")
	}
}
