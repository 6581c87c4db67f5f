package postgres

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// One who listens where nothing is told of the locks says so, and waits no longer than one
// who does not listen.
func TestPostgresDeafListener(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	p.Must(t, "CREATE DATABASE elsewhere")
	pool := servers.StartPgBouncer(t, p, 2)
	good := opened(t, p.URL(), p.URL())
	if err := good.Listening(t.Context()); err != nil {
		t.Errorf("Listening at the locks' database: %v", err)
	}
	if err := opened(t, p.URL(), "").Listening(t.Context()); !errors.Is(err, sqllock.ErrDeaf) {
		t.Errorf("Listening without a Listener: %v; want ErrDeaf", err)
	}
	for _, listen := range []string{p.URL(), ""} {
		if level, text := servers.Found(t, opened(t, p.URL(), listen), driver.AboutWaking); level != driver.Fine {
			t.Errorf("Check with a Listener at %q: %v, %q; want no warning", listen, level, text)
		}
	}
	for name, listen := range map[string]string{
		"another database": strings.Replace(p.URL(), "/postgres?", "/elsewhere?", 1),
		"a pool":           pool.URL(),
		"nobody there":     "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := opened(t, p.URL(), listen)
			if err := d.Listening(t.Context()); !errors.Is(err, sqllock.ErrDeaf) {
				t.Errorf("Listening: %v; want ErrDeaf", err)
			}
			if level, text := servers.Found(t, d, driver.AboutWaking); level != driver.Weak || !strings.Contains(text, sqllock.ErrDeaf.Error()) {
				t.Errorf("Check: %v, %q; want a warning that it is deaf", level, text)
			}
			// It may have believed it for a second.
			if gap := handOver(t, name, opened(t, p.URL(), ""), d); gap > 500*time.Millisecond {
				polling := handOver(t, name+", polling", opened(t, p.URL(), ""), opened(t, p.URL(), ""))
				if gap > 2*polling {
					t.Errorf("handed over within %v; want as quickly as by polling, which took %v", gap, polling)
				}
			}
		})
	}
}

// handOver is the median time until a lease that one gives up is the other's.
func handOver(t *testing.T, name string, one, other databases.Store) time.Duration {
	from, to := databases.Locker(t, one, leasehold.Options{}), databases.Locker(t, other, leasehold.Options{})
	var all []time.Duration
	for range 5 {
		lease, err := from.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan time.Time, 1)
		go func() {
			defer close(got)
			next, err := to.Acquire(t.Context(), name)
			if err != nil {
				t.Errorf("Acquire: %v", err)
				return
			}
			got <- time.Now()
			if err := next.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}()
		// The one who waits looks again after a second: somewhere in between.
		time.Sleep(1100 * time.Millisecond)
		start := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, (<-got).Sub(start))
		<-got // it is released
	}
	slices.Sort(all)
	t.Logf("handed over within %v", all)
	return all[len(all)/2]
}
