package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// An uncancelled connection loses requests to cancel a statement.
type uncancelled struct{ net.Conn }

func (c uncancelled) Write(b []byte) (int, error) {
	if len(b) == 16 && binary.BigEndian.Uint32(b[4:]) == 80877102 {
		return len(b), c.Close()
	}
	return c.Conn.Write(b)
}

// patient opens a driver whose statements go on at the server when their callers have given up.
func patient(t testing.TB, p *servers.Postgres) databases.Store {
	t.Helper()
	config, err := pgx.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return uncancelled{c}, err
	}
	l, err := pglisten.New(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	d, err := sqllock.NewPostgres(db, &sqllock.Options{Listen: l})
	return databases.Migrated(t, databases.Store{Driver: d, DB: db}, err)
}

// A place that comes behind its Release, or behind one that had no answer either, is removed by the next heartbeat. If the
// Release was answered, others pass it over until then.
func TestPostgresPlaceComesAfterItsRelease(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d, other := patient(t, p), opened(t, p.URL(), p.URL())
	blocked := func(n int) {
		t.Helper()
		claimtest.Eventually(t, fmt.Sprint(n, " statements wait for a row"), func() bool {
			return p.Must(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == fmt.Sprint(n)
		})
	}
	places := func(name string) string {
		return p.Must(t, "SELECT count(*) FROM leasehold_places WHERE name = '"+name+"'")
	}
	for name, answered := range map[string]bool{"answered": true, "unanswered": false} {
		holder := asks(t, other, name, nil)
		holder.granted(t)
		tx, err := other.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("SELECT FROM leasehold_locks WHERE name = $1 FOR UPDATE", name); err != nil {
			t.Fatal(err)
		}
		late := asks(t, d, name, func(req *driver.Request) { req.Queue, req.Wanted = true, nil })
		left := func(n int, call func(ctx context.Context) error) (answer <-chan error, stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			blocked(n)
			return done, cancel
		}
		tried, stop := left(1, func(ctx context.Context) error { _, err := late.Try(ctx); return err })
		stop()
		if err := <-tried; err == nil {
			t.Fatal("granted though another holds")
		}
		released, stop := left(2, func(ctx context.Context) error { return late.Release(ctx, driver.End{}) })
		defer stop()
		if !answered {
			stop()
			if err := <-released; !errors.Is(err, context.Canceled) {
				t.Fatalf("Release: %v; want no answer", err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if answered {
			if err := <-released; err != nil && !errors.Is(err, driver.ErrLost) {
				t.Fatalf("Release: %v", err)
			}
			claimtest.Released(t, holder)
			asks(t, other, name, nil).granted(t)
		}
		blocked(0)
		claimtest.Eventually(t, name+": the place is gone", func() bool { return places(name) == "0" })
	}
}
