// Package limits_test measures limits: what weights and two names cost, what thousands of holders
// cost, and what is left of a limit after a crash, beside a counter by hand.
package limits_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/internal/quota"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

const (
	workerEnv = "LEASEHOLD_BENCH_LIMITS_WORKER"
	byHand    = "counter by hand"
	pause     = 20 * time.Millisecond // between two tries by hand
	ttl       = 5 * time.Second
)

// A store is where limits are kept. The goals are the costs of two weighted names, and of 10,000 holders,
// as ratios.
type store struct {
	name           string
	start          func(b *testing.B) (url string)
	counter        func(o quota.Order) (quota.Admission, error)
	left           func(url string) (int, error)                    // the counter of all keys
	sent           func(url string) (calls, reads int64, err error) // what the server has had; nil: it does not tell
	keys, perKey   int                                              // with workers
	total          int                                              // the limit of all
	holders        int                                              // of one name
	twoNames, many float64                                          // 0: no goal
}

var storesOf = []store{
	{"Redis", func(b *testing.B) string { return "redis://" + servers.StartRedis(b).Addr() + "/0" }, redisCounter, redisLeft, redisSent, 100, 50, 200, 10_000, 1.3, 3},
	{"PostgreSQL", startPostgres, postgresCounter, postgresLeft, nil, 20, 15, 60, 1_000, 2, 0},
}

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		(&contest.Engine{Name: "limits"}).Main(m)
	}
	if err := quota.Work(open); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func open(ctx context.Context, o quota.Order) (quota.Admission, error) {
	for _, s := range storesOf {
		if o.How == s.name {
			return s.counter(o)
		}
	}
	d, err := stores.Open(ctx, o.URL)
	if err != nil {
		return nil, err
	}
	return quota.Leasehold(d, o)
}

// BenchmarkLimits prints its tables at the end; the times per operation that go test prints mean
// nothing here.
func BenchmarkLimits(b *testing.B) {
	two := contest.NewTable("Acquire and release, alone: two names with weights by AcquireAll, and one shared name",
		"store", "two names", "one name", "ratio", "calls", "of one", "reads of the server", "of one")
	many := contest.NewTable("Acquire and release a weight of 2, beside other holders of the name", "store", "10 holders", "many holders", "so many", "ratio")
	kills := contest.NewTable("At most 5 at work of a key; half of the processes are killed", "limit", "keys", "workers of each", "most of all", "turns/s before", "after", "ratio", "seen of a key", "seen of all", "over a limit",
		"killed at work", "slots back after", "slots lost")
	var parts []contest.Part
	for _, s := range storesOf {
		parts = append(parts,
			contest.Part{Name: s.name + "/Two", Run: func(b *testing.B) { s.two(b, two) }},
			contest.Part{Name: s.name + "/Many", Run: func(b *testing.B) { s.crowd(b, many) }},
			contest.Part{Name: s.name + "/Killed", Run: func(b *testing.B) { s.kill(b, kills) }})
	}
	contest.Run(b, parts...)
}

func locker(b *testing.B, url string) *leasehold.Locker {
	b.Helper()
	d, err := stores.Open(context.Background(), url)
	if err != nil {
		b.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{TTL: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { locks.Close(); d.Close() })
	return locks
}

// cycle is how long it takes to acquire and release.
func cycle(b *testing.B, acquire func() (release func(context.Context) error, err error)) time.Duration {
	b.Helper()
	start := time.Now()
	release, err := acquire()
	if err == nil {
		err = release(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func weighted(ctx context.Context, locks *leasehold.Locker) (func(context.Context) error, error) {
	leases, err := locks.AcquireAll(ctx, nil, leasehold.For("tenant/7", leasehold.Limit(5)),
		leasehold.For("total", leasehold.Limit(200), leasehold.Weight(3)))
	if err != nil {
		return nil, err
	}
	return leases.Release, nil
}

// two takes turns with one plain shared name.
func (s store) two(b *testing.B, table *contest.Table) {
	url, ctx := s.start(b), context.Background()
	locks := locker(b, url)
	rounds := 500
	if testing.Short() {
		rounds = 50
	}
	var both, one []time.Duration
	for i := range rounds + rounds/10 { // the first open connections
		t := cycle(b, func() (func(context.Context) error, error) { return weighted(ctx, locks) })
		o := cycle(b, func() (func(context.Context) error, error) { return shared(ctx, locks, "plain") })
		if i >= rounds/10 {
			both, one = append(both, t), append(one, o)
		}
	}
	t, o := contest.Median(both), contest.Median(one)
	ratio := t.Seconds() / o.Seconds()
	c2, r2 := s.perCycle(b, url, rounds, func() (func(context.Context) error, error) { return weighted(ctx, locks) })
	c1, r1 := s.perCycle(b, url, rounds, func() (func(context.Context) error, error) { return shared(ctx, locks, "plain") })
	table.Row(s.name, t, o, ratio, c2, c1, r2, r1)
	contest.AtMost(s.name+": two weighted names / one shared name", ratio, s.twoNames)
}

// perCycle is how many calls a cycle makes, and how often the server reads from a connection: calls
// that share a round trip are one read.
func (s store) perCycle(b *testing.B, url string, rounds int, acquire func() (func(context.Context) error, error)) (calls, reads float64) {
	b.Helper()
	if s.sent == nil {
		return math.NaN(), math.NaN()
	}
	c, r, err := s.sent(url)
	for range rounds {
		cycle(b, acquire)
	}
	c2, r2, err2 := s.sent(url)
	if err = errors.Join(err, err2); err != nil {
		b.Fatal(err)
	}
	return float64(c2-c) / float64(rounds), float64(r2-r) / float64(rounds)
}

func shared(ctx context.Context, locks *leasehold.Locker, name string, opts ...leasehold.Option) (func(context.Context) error, error) {
	lease, err := locks.Acquire(ctx, name, append(opts, leasehold.Shared())...)
	if err != nil {
		return nil, err
	}
	return lease.Release, nil
}

// crowd measures beside few and many holders, each with a weight.
func (s store) crowd(b *testing.B, table *contest.Table) {
	holders, rounds := s.holders, 200
	if testing.Short() {
		holders, rounds = 200, 20
	}
	locks, ctx := locker(b, s.start(b)), context.Background()
	var took [2]time.Duration
	for i, n := range []int{10, holders} {
		name := fmt.Sprint("crowd/", n)
		hold(b, locks, name, n)
		var all []time.Duration
		for range rounds {
			all = append(all, cycle(b, func() (func(context.Context) error, error) {
				return shared(ctx, locks, name, leasehold.Limit(1_000_000), leasehold.Weight(2))
			}))
		}
		took[i] = contest.Median(all)
	}
	ratio := took[1].Seconds() / took[0].Seconds()
	table.Row(s.name, took[0], took[1], holders, ratio)
	if s.many > 0 {
		contest.AtMost(s.name+": acquire beside many holders / beside 10", ratio, s.many)
	}
}

// hold has n weighted holders for as long as the benchmark runs. They end with their TTL.
func hold(b *testing.B, locks *leasehold.Locker, name string, n int) {
	b.Helper()
	var callers sync.WaitGroup
	for c := range 16 {
		callers.Go(func() {
			for i := c; i < n; i += 16 {
				_, err := locks.Acquire(context.Background(), name, leasehold.Limit(1_000_000), leasehold.Weight(1+i%3),
					leasehold.TTL(10*time.Minute), leasehold.NoRenew())
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}

// kill kills half of the processes of ours, and then of a counter by hand.
func (s store) kill(b *testing.B, table *contest.Table) {
	o := quota.Order{Keys: s.keys, PerKey: s.perKey, Limit: 5, Total: s.total, Hold: time.Second, TTL: ttl, Processes: 10}
	window := 4 * time.Second
	if testing.Short() {
		o.Keys, o.PerKey, o.Total, window = 10, 10, 20, 2*time.Second
	}
	// The best of two: something else may use the machine.
	rate := func(f *quota.Fleet) float64 { return max(f.Rate(window), f.Rate(window)) }
	for _, how := range []string{"", s.name} {
		o.URL, o.How = s.start(b), how
		f := quota.Start(b, workerEnv+"=1", o)
		f.Busy(int64(o.Total) * 3 / 4)
		before := rate(f)
		worked, gone := f.KillHalf()
		back := "never"
		if how == "" {
			back = wait(b, o, f, gone).Round(10 * time.Millisecond).String()
		} else {
			time.Sleep(ttl)
		}
		after := rate(f)
		f.End()
		n := f.Count()
		left, err := 0, error(nil)
		name := s.name + ": Leasehold"
		if how != "" {
			name = s.name + ": " + byHand
			left, err = s.left(o.URL)
		}
		if err != nil {
			b.Fatal(err)
		}
		table.Row(name, o.Keys, o.PerKey, o.Total, before, after, after/before, n.PeakKey, n.PeakTotal, n.OverKey+n.OverTotal, worked, back, left)
		if how == "" {
			contest.AtMost(s.name+": how often over a limit", float64(n.OverKey+n.OverTotal), 0)
			contest.AtLeast(s.name+": throughput after the kills / before", after/before, 0.9)
		}
	}
}

// wait waits until no killed process holds a slot of all.
func wait(b *testing.B, o quota.Order, f *quota.Fleet, gone time.Time) time.Duration {
	b.Helper()
	locks := locker(b, o.URL)
	names := []string{quota.TotalName}
	for key := range o.Keys {
		names = append(names, quota.KeyName(key))
	}
	for _, name := range names {
		for held := true; held; {
			st, err := locks.Inspect(context.Background(), name)
			if err != nil {
				b.Fatal(err)
			}
			held = false
			for _, h := range st.Holders {
				held = held || f.Killed(h.Note)
			}
			if held {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	return time.Since(gone)
}

func redisCounter(o quota.Order) (quota.Admission, error) {
	opts, err := redis.ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(opts)
	try := func(ctx context.Context, key string) (bool, error) {
		n, err := client.Eval(ctx, quota.CounterScript, []string{key, quota.TotalName}, o.Limit, o.Total).Int()
		return n == 1, err
	}
	return quota.Poll(pause, try, func(key string) error {
		return client.Eval(context.Background(), quota.UncountScript, []string{key, quota.TotalName}).Err()
	}), nil
}

func redisLeft(url string) (int, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return 0, err
	}
	client := redis.NewClient(opts)
	defer client.Close()
	return client.Get(context.Background(), quota.TotalName).Int()
}

func redisSent(url string) (calls, reads int64, err error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return 0, 0, err
	}
	client := redis.NewClient(opts)
	defer client.Close()
	info, err := client.Info(context.Background(), "stats").Result()
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(line, "total_reads_processed:"); ok {
			reads, err = strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	if err != nil {
		return 0, 0, err
	}
	info, err = client.Info(context.Background(), "commandstats").Result()
	for _, found := range regexp.MustCompile(`cmdstat_(?:evalsha|eval):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		n, _ := strconv.ParseInt(found[1], 10, 64) // it is digits
		calls += n
	}
	return calls, reads, err
}

func startPostgres(b *testing.B) string {
	url := servers.StartPostgres(b, "max_connections=500").URL()
	db, err := sql.Open("pgx", url)
	if err == nil {
		defer db.Close()
		_, err = db.Exec("CREATE TABLE counters (name text PRIMARY KEY, n int NOT NULL)")
	}
	if err != nil {
		b.Fatal(err)
	}
	return url
}

var errFull = errors.New("full")

// postgresCounter counts two rows up and down, each time in a transaction.
func postgresCounter(o quota.Order) (quota.Admission, error) {
	db, err := sql.Open("pgx", o.URL)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	try := func(ctx context.Context, key string) (bool, error) {
		err := inTx(ctx, db, func(tx *sql.Tx) error {
			for _, c := range []struct {
				name  string
				limit int
			}{{key, o.Limit}, {quota.TotalName, o.Total}} {
				done, err := tx.ExecContext(ctx, `INSERT INTO counters VALUES ($1, 1)
					ON CONFLICT (name) DO UPDATE SET n = counters.n + 1 WHERE counters.n < $2`, c.name, c.limit)
				if err != nil {
					return err
				}
				if n, err := done.RowsAffected(); err != nil || n == 0 {
					return errors.Join(err, errFull)
				}
			}
			return nil
		})
		if errors.Is(err, errFull) {
			return false, nil
		}
		return err == nil, err
	}
	return quota.Poll(pause, try, func(key string) error {
		ctx := context.Background()
		return inTx(ctx, db, func(tx *sql.Tx) error {
			for _, name := range []string{key, quota.TotalName} {
				if _, err := tx.ExecContext(ctx, "UPDATE counters SET n = n - 1 WHERE name = $1", name); err != nil {
					return err
				}
			}
			return nil
		})
	}), nil
}

func inTx(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // what it has done is nothing
		return err
	}
	return tx.Commit()
}

func postgresLeft(url string) (n int, err error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.QueryRow("SELECT n FROM counters WHERE name = $1", quota.TotalName).Scan(&n)
	return n, err
}
