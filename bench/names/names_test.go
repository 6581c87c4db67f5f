// Package names_test measures what a list, a look and a cycle cost beside many live locks.
package names_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	process "github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/serve"
)

func TestMain(m *testing.M) {
	(&contest.Engine{Name: "names", Rounds: "one round of each row"}).Main(m)
}

// A store has locks, which outlive the run.
type store struct {
	name   string
	url    string // for the command
	driver driver.Driver
	fill   driver.Driver // as quick as the store can be, for locks that nobody minds to lose
	pid    int           // of the server, which may have children
	slow   func() string // for how long one command has blocked the server, of those since the last call
}

// BenchmarkNames prints its table at the end; the times per operation that go test prints mean nothing here.
func BenchmarkNames(b *testing.B) {
	command := build(b)
	table := contest.NewTable("Beside so many live locks: medians, and of the list the time for each lock",
		"store", "live locks", "cycle, p50", "cycle, p99", "GET /v1/locks?limit=50", "ls --limit 50", "show", "list of all", "each", "processor time of it, each", "longest command")
	counts := []int{100, 10_000, 100_000, 1_000_000}
	if testing.Short() {
		counts = counts[:2]
	}
	contest.Run(b,
		contest.Part{Name: "Redis", Run: func(b *testing.B) { measure(b, startRedis(b), command, counts, table) }},
		contest.Part{Name: "PostgreSQL", Run: func(b *testing.B) { measure(b, startPostgres(b), command, counts, table) }},
	)
}

// build builds the command.
func build(b *testing.B) (command string) {
	command = filepath.Join(b.TempDir(), "leasehold")
	if err := servers.Program(command, "github.com/leasehold-go/leasehold/cmd/leasehold"); err != nil {
		b.Fatal(err)
	}
	return command
}

func startRedis(b *testing.B) store {
	r := servers.StartRedis(b)
	contest.Server(contest.Version(b, "redis-server", "--version"))
	d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	r.Must(b, "CONFIG", "SET", "slowlog-log-slower-than", "500")
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	b.Cleanup(func() { client.Close() })
	return store{"Redis", "redis://" + r.Addr() + "/0", d, d, r.Pid(), func() string {
		slow, err := client.SlowLogGet(context.Background(), 128).Result()
		longest := 500 * time.Microsecond
		for _, s := range slow {
			longest = max(longest, s.Duration)
		}
		if err := client.SlowLogReset(context.Background()).Err(); err != nil {
			b.Error(err)
		}
		if err != nil || len(slow) == 0 {
			return "< 500 µs"
		}
		return longest.String()
	}}
}

func startPostgres(b *testing.B) store {
	p := servers.StartPostgres(b)
	url := p.URL()
	contest.Server(contest.Version(b, "postgres", "--version"))
	open := func(url string) *sqllock.Driver {
		db, err := sql.Open("pgx", url)
		if err != nil {
			b.Fatal(err)
		}
		db.SetMaxIdleConns(16)
		db.SetMaxOpenConns(32)
		d, err := sqllock.NewPostgres(db, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { d.Close(); db.Close() })
		return d
	}
	d := open(url)
	if err := d.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	and := "?"
	if strings.Contains(url, "?") {
		and = "&"
	}
	return store{"PostgreSQL", url, d, open(url + and + "synchronous_commit=off"), p.Pid(), func() string { return "–" }}
}

// measure grows the store to each of counts.
func measure(b *testing.B, s store, command string, counts []int, table *contest.Table) {
	locks, err := leasehold.New(s.driver, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { locks.Close() })
	served, err := serve.New(s.driver, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { served.Close() })
	web := httptest.NewServer(served)
	b.Cleanup(web.Close)
	there := 0
	for _, n := range counts {
		grow(b, s.fill, there, n)
		there = n
		s.slow()
		var row []any
		cycles := times(b, 500, func(i int) error {
			lease, err := locks.Acquire(b.Context(), fmt.Sprint("cycle/", i))
			if err == nil {
				err = lease.Release(b.Context())
			}
			return err
		})
		row = append(row, s.name, thousands(n), contest.Median(cycles), contest.Percentile(cycles, 99))
		row = append(row, contest.Median(times(b, 50, func(int) error { return get(web.URL + "/v1/locks?limit=50") })))
		row = append(row, contest.Median(times(b, 10, func(int) error { return run(command, s.url, 51, "ls", "--limit", "50") })))
		row = append(row, contest.Median(times(b, 10, func(i int) error { return run(command, s.url, 0, "show", nameOf(i*n/10)) })))
		start, used := time.Now(), s.processorTime(b)
		listed := make(map[string]bool, n)
		for state, err := range locks.List(b.Context(), "live/") {
			if err != nil {
				b.Fatal(err)
			}
			listed[state.Resource] = true
		}
		took := time.Since(start)
		used = s.processorTime(b) - used
		if len(listed) != n {
			b.Errorf("%d of %d are listed", len(listed), n)
		}
		each, cost := took/time.Duration(n), used/time.Duration(n)
		if n < 10_000 { // it is counted in steps of 10 ms
			cost = -1
		}
		table.Row(append(row, took, each, cost, s.slow())...)
		if n >= 10_000 {
			// Other programs on the machine lengthen the elapsed time, but not the processor time.
			contest.AtMost(fmt.Sprintf("%s: µs of processor time for each of %s locks that are listed", s.name, thousands(n)), cost.Seconds()*1e6, 20)
		}
	}
}

// processorTime is what this process and the server have used, with those children of it that are there.
func (s store) processorTime(b *testing.B) time.Duration {
	used := process.ProcessCPU(b, os.Getpid()) + process.ProcessCPU(b, s.pid)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, child := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(child)
		if err != nil {
			b.Fatal(err)
		}
		used += process.ProcessCPU(b, pid)
	}
	return used
}

func nameOf(i int) string { return fmt.Sprintf("live/%07d", i) }

// grow takes the locks from to until, for an hour.
func grow(b *testing.B, d driver.Driver, from, until int) {
	var next atomic.Int64
	next.Store(int64(from))
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= until || b.Failed() {
					return
				}
				name := nameOf(i)
				c, err := d.Claim(driver.Request{Resource: name, Owner: "owner-of-" + name, TTL: time.Hour, Note: "a host, pid 4711"})
				if err == nil {
					_, err = c.Try(b.Context())
				}
				if err != nil {
					b.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
}

// times makes calls, one after the other, and returns how long each took, but for the first, which opens connections.
func times(b *testing.B, n int, call func(i int) error) (all []time.Duration) {
	if testing.Short() {
		n = 2
	}
	for i := range n + 1 {
		start := time.Now()
		if err := call(i % n); err != nil {
			b.Fatal(err)
		}
		if i > 0 {
			all = append(all, time.Since(start))
		}
	}
	return all
}

func get(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if n := bytes.Count(body, []byte(`"name":`)); err == nil && n != 50 {
		err = fmt.Errorf("%s: %d locks", resp.Status, n)
	}
	return err
}

// run runs the command, which is to print so many lines, if that is not 0.
func run(command, url string, lines int, args ...string) error {
	cmd := exec.Command(command, append([]string{"--store", url}, args...)...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	switch n := bytes.Count(out, []byte("\n")); {
	case err != nil:
		return fmt.Errorf("%w: %s", err, failed.String())
	case lines > 0 && n != lines:
		return fmt.Errorf("%q: %d lines, want %d", args, n, lines)
	}
	return nil
}

// thousands is n with commas.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
