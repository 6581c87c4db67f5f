package demo

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

	"github.com/leasehold-go/leasehold/stores"
)

// asProcess makes this test binary a process of a scenario.
const asProcess = "LEASEHOLD_TEST_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		os.Exit(m.Run())
	}
	if err := Work(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// newStage returns one with a lock file and books of its own.
func newStage(t *testing.T) *Stage {
	t.Helper()
	dir := t.TempDir()
	store := "sqlite:" + filepath.Join(dir, "locks.db")
	d, err := stores.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	return &Stage{Dir: dir, Store: store, Features: d.Features(), Worker: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), asProcess+"=1", "GORACE=atexit_sleep_ms=0") // its default of a second for each process tells nothing more
		return cmd
	}}
}

func play(t *testing.T, st *Stage, s Scenario, strategies ...Strategy) *Report {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	rep, err := st.Play(t.Context(), s, strategies)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// scenarios go wrong without a lock however the processes are spread over time.
// Failover needs a server and stands in e2e.
var scenarios = []Scenario{
	newSeckill(), &Inventory{Items: 4, Stock: 2, Quantities: []int{2, 2, 1, 1}, Processes: 2}, newCoupon(), newCron(), newLongJob(), newParking(),
}

func TestOnlyWithoutLockTheBooksAreBroken(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.About().Name, func(t *testing.T) {
			t.Parallel()
			rep := play(t, newStage(t), s, s.About().Strategies...)
			for strategy, res := range rep.Runs {
				if broken := res.broken(); len(broken) > 0 == strategy.promises() {
					t.Errorf("%s: %q: %+v", strategy, broken, res)
				}
			}
			if err := rep.Err(); err != nil {
				t.Error(err)
			}
			var table strings.Builder
			rep.Write(&table)
			for _, part := range []string{"WITHOUT LOCK", "UNDER LOCK", "in order", "NO", "yes", "without lock: "} {
				if !strings.Contains(table.String(), part) {
					t.Errorf("no %q in:\n%s", part, &table)
				}
			}
		})
	}
}

func TestBrokenBooksAreAnErrorWherePromised(t *testing.T) {
	wrong := &SeckillResult{verdict: judge(rule{true, "a"}, rule{false, "b"})}
	for strategy, want := range map[Strategy]bool{None: false, Lock: true, Optimistic: true, async: false, fencing: true, redlock: true} {
		rep := &Report{Scenario: "x", Runs: map[Strategy]Result{strategy: wrong}, order: []Strategy{strategy}}
		err := rep.Err()
		if (err != nil) != want {
			t.Errorf("%s: %v", strategy, err)
		}
		if want && !strings.Contains(err.Error(), "x went wrong ("+string(strategy)+"): b\n") {
			t.Errorf("%s: %v", strategy, err)
		}
	}
}

func TestProgressIsTold(t *testing.T) {
	t.Parallel()
	st, told := newStage(t), 0
	st.Progress = func(text string) {
		told++
		if !strings.HasPrefix(text, "UNDER LOCK: ") {
			t.Errorf("progress %q", text)
		}
	}
	play(t, st, &Seckill{Buyers: 6, Stock: 2, Processes: 2, Retries: -1}, Lock)
	if told != 6 {
		t.Errorf("told %d times, want 6", told)
	}
}

func TestProcessEndsWithItsParent(t *testing.T) {
	t.Parallel()
	st := newStage(t)
	r := &run{stage: st, order: order{Scenario: "seckill", Settings: []byte("{}"), Strategy: None, Books: place{URL: inFile + st.Dir + "/books.db"}}}
	p, err := r.start(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	p.in.Close() // what the kernel does when the parent dies
	ended := make(chan error, 1)
	go func() { ended <- p.hear(make(chan saying, 10)) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("ended well without a sale")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("still there")
	}
}

func TestEndOfContextEndsThePlay(t *testing.T) {
	t.Parallel()
	st := newStage(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	st.Progress = func(string) { cancel(why) }
	_, err := st.Play(ctx, &Seckill{Buyers: 200, Stock: 200, Processes: 2, Retries: -1}, []Strategy{Lock})
	if !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestProcessThatFailsIsReported(t *testing.T) {
	t.Parallel()
	st := newStage(t)
	st.Store = "sqlite:/nonexistent/folder/locks.db"
	_, err := st.Play(t.Context(), newSeckill(), []Strategy{Lock})
	if err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("got %v, want what the process said", err)
	}
	st.Worker = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/nonexistent") }
	if _, err := st.Play(t.Context(), newSeckill(), []Strategy{None}); err == nil {
		t.Error("a program that is missing is no error")
	}
}

// Those that are ready would wait for it without end.
func TestProcessThatEndsBeforeTheOpeningIsReported(t *testing.T) {
	t.Parallel()
	st, started := newStage(t), 0
	others := st.Worker
	st.Worker = func(ctx context.Context) *exec.Cmd {
		if started++; started == 1 {
			return exec.CommandContext(ctx, "sh", "-c", "read order")
		}
		return others(ctx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := st.Play(ctx, newSeckill(), []Strategy{None})
	if err == nil || !strings.Contains(err.Error(), "before all were ready") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsOutOfRange(t *testing.T) {
	for _, s := range []Scenario{
		&Seckill{0, 5, 1, false, 0}, &Seckill{-1, 5, 1, false, 0}, &Seckill{maxBuyers + 1, 5, 3, false, 0}, &Seckill{30, 0, 3, false, 0},
		&Seckill{30, maxStock + 1, 3, false, 0}, &Seckill{30, 5, 0, false, 0}, &Seckill{3, 5, 4, false, 0},
		&Seckill{100, 5, maxProcesses + 1, false, 0}, &Seckill{30, 5, 3, false, -2},
		&Inventory{0, 2, []int{1}, 1}, &Inventory{1, 2, nil, 1}, &Inventory{1, 2, []int{1, 0}, 1}, &Inventory{1, -1, []int{1}, 1},
		&Coupon{10, 4, 1, 5, time.Second}, &Coupon{10, 4, 3, 0, time.Second}, &Coupon{10, 4, 3, 5, 0}, &Coupon{10, 4, 3, 5, time.Hour},
		&Cron{1, time.Second}, &Cron{4, time.Millisecond}, &Cron{4, time.Hour},
		&LongJob{leastSteps - 1, time.Second}, &LongJob{20, time.Millisecond},
		&Parking{1, 5, 6, 1}, &Parking{1, 5, 5, 2}, &Parking{1, 0, 0, 1}, &Failover{0},
	} {
		if err := s.Check(); !errors.Is(err, ErrSettings) {
			t.Errorf("%#v: %v, want ErrSettings", s, err)
		}
	}
	for _, s := range Scenarios() {
		if err := s.Check(); err != nil {
			t.Errorf("defaults of %s: %v", s.About().Name, err)
		}
	}
}

func TestQuantile(t *testing.T) {
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 100, 0: 1} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 || quantile(all[:1], 0.99) != 1 {
		t.Error("few values")
	}
}
