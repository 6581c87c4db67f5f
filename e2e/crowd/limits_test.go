package crowd

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/quota"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

const (
	workerEnv = "LEASEHOLD_TEST_LIMITS_WORKER"
	counter   = "counter" // INCR and DECR in a script
	slotTTL   = 3 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		os.Exit(m.Run())
	}
	if err := quota.Work(open); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func open(ctx context.Context, o quota.Order) (quota.Admission, error) {
	if o.How == counter {
		return byCounter(o)
	}
	d, err := stores.Open(ctx, o.URL)
	if err != nil {
		return nil, err
	}
	return quota.Leasehold(d, o)
}

func byCounter(o quota.Order) (quota.Admission, error) {
	opts, err := redis.ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(opts)
	try := func(ctx context.Context, key string) (bool, error) {
		n, err := client.Eval(ctx, quota.CounterScript, []string{key, quota.TotalName}, o.Limit, o.Total).Int()
		return n == 1, err
	}
	return quota.Poll(20*time.Millisecond, try, func(key string) error {
		return client.Eval(context.Background(), quota.UncountScript, []string{key, quota.TotalName}).Err()
	}), nil
}

// order is small: its limits are reached, and its rate is that of the limits and not of the machine.
func order(url, how string) quota.Order {
	return quota.Order{URL: url, How: how, Keys: 8, PerKey: 8, Limit: 3, Total: 16, Hold: 200 * time.Millisecond, TTL: slotTTL, Processes: 4}
}

// checked fails the test if more were at work than the limits allow, or if they were never reached.
func checked(t *testing.T, f *quota.Fleet, o quota.Order) {
	t.Helper()
	n := f.Count()
	if n.OverKey > 0 || n.OverTotal > 0 || n.PeakKey > int64(o.Limit) || n.PeakTotal > int64(o.Total) {
		t.Errorf("over a limit: %+v", n)
	}
	if n.PeakKey < int64(o.Limit) || n.PeakTotal < int64(o.Total) {
		t.Errorf("a limit was not reached, so that nothing was tested: %+v", n)
	}
}

// Half of the workers die at once, at work and in queues. No limit is exceeded before or after, and all
// of their slots are free within the TTL: the rest then works as fast as all did before.
func TestSlotsOfTheDeadComeBack(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() (url string){
		"redis":    func() string { return "redis://" + servers.StartRedis(t).Addr() + "/0" },
		"postgres": func() string { return servers.StartPostgres(t, "max_connections=300").URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "redis" {
				servers.Long(t, "the short lane has it on Redis")
			}
			o := order(start(), "")
			locks := look(t, o.URL)
			f := quota.Start(t, workerEnv+"=1", o)
			f.Busy(int64(o.Total))
			before := f.Rate(2 * time.Second)
			worked, gone := f.KillHalf()
			if worked == 0 {
				t.Fatal("none of the killed was at work")
			}
			free := dead(t, locks, o, f, gone)
			t.Logf("%d were killed at work; their slots were free after %v", worked, free)
			after := 0.0
			for end := time.Now().Add(time.Minute); after < 0.9*before && time.Now().Before(end); {
				after = max(after, f.Rate(2*time.Second)) // something else may use the machine
			}
			if t.Logf("%.1f turns a second before, %.1f after", before, after); after < 0.9*before {
				t.Errorf("%.1f turns a second before, %.1f after", before, after)
			}
			f.End()
			checked(t, f, o)
		})
	}
}

func look(t *testing.T, url string) *leasehold.Locker {
	t.Helper()
	d, err := stores.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return locks
}

// dead waits until no killed process holds a slot, and returns how long that took since they were
// gone. None of their leases may end later than a TTL after that, by the clock of the engine.
func dead(t *testing.T, locks *leasehold.Locker, o quota.Order, f *quota.Fleet, gone time.Time) time.Duration {
	t.Helper()
	names := []string{quota.TotalName}
	for key := range o.Keys {
		names = append(names, quota.KeyName(key))
	}
	for seen := 0; ; seen = 0 {
		for _, name := range names {
			asked := time.Since(gone)
			st, err := locks.Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range st.Holders {
				if !f.Killed(h.Note) {
					continue
				}
				seen++
				if asked+h.Left > o.TTL {
					t.Fatalf("%v after its end, process %s still holds %s for %v, with a TTL of %v", asked, h.Note, name, h.Left, o.TTL)
				}
			}
		}
		if seen == 0 {
			return time.Since(gone)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// The same with a counter as most write it: the slots of the dead are gone for good.
func TestCounterLeaksSlots(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	o := order("redis://"+r.Addr()+"/0", counter)
	f := quota.Start(t, workerEnv+"=1", o)
	f.Busy(int64(o.Total))
	before := f.Rate(2 * time.Second)
	worked, _ := f.KillHalf()
	time.Sleep(slotTTL) // so long, slots of leases would need at most
	after := f.Rate(2 * time.Second)
	f.End()
	checked(t, f, o)
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	leaked, err := client.Get(t.Context(), quota.TotalName).Int()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d were killed at work, %d of %d slots are leaked; %.1f turns a second before, %.1f after", worked, leaked, o.Total, before, after)
	if leaked < worked || worked == 0 {
		t.Errorf("%d slots are leaked, want those of the %d who were killed at work", leaked, worked)
	}
}
