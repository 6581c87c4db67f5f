package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A standby that has not heard of the last grants and releases takes over. Who held before holds, who waits waits
// on, holders of since learn, what was released since is free when its lease is over, and fences grow.
func TestPostgresStandbyTakesOver(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	url := p.URL()
	open := func() databases.Store { return opened(t, url, url) }
	databases.Migrated(t, open(), nil)
	s := p.StartStandby(t)
	url = strings.Replace(p.URL(), p.Addr(), p.Addr()+","+s.Addr(), 1) + "&target_session_attrs=read-write"
	one, other := open(), open()
	const ttl, short = time.Minute, 5 * time.Second
	claimed := func(d driver.Driver, name string, ttl time.Duration) driver.Claim {
		return claimtest.New(t, d, driver.Request{Resource: name, Owner: fmt.Sprint(name, time.Now().UnixNano()), TTL: ttl})
	}
	try := func(c driver.Claim) driver.Grant {
		t.Helper()
		g := claimtest.Granted(t, c)
		return g
	}
	kept, released := claimed(one, "kept", ttl), claimed(one, "released", short)
	fence := try(kept).Fence
	try(released)
	waiter, got := databases.Locker(t, other, leasehold.Options{}), make(chan error, 1)
	go func() { got <- waiter.Do(t.Context(), "kept", func(context.Context) error { return nil }) }()
	const rows = "SELECT count(*) FROM leasehold_locks WHERE owner LIKE 'released%' OR owner LIKE 'kept%' AND crowd > 0"
	claimtest.Eventually(t, "the standby has it all", func() bool { n, err := s.Ask(rows); return err == nil && n == "2" })
	s.Must(t, "ALTER SYSTEM SET primary_conninfo = ''")
	s.Must(t, "SELECT pg_reload_conf()")
	claimtest.Eventually(t, "the standby hears no more", func() bool {
		n, err := s.Ask("SELECT count(*) FROM pg_stat_wal_receiver")
		return err == nil && n == "0"
	})
	claimtest.Released(t, released)
	since := claimed(one, "since", ttl)
	last := try(since).Fence
	p.Kill()
	s.Must(t, "SELECT pg_promote()")

	claimtest.Eventually(t, "renewed", func() bool {
		g, err := kept.Renew(t.Context(), ttl)
		if errors.Is(err, driver.ErrLost) || err == nil && g.Fence != fence {
			t.Fatalf("Renew of before: %v, %v; want fence %d", g, err, fence)
		}
		return err == nil
	})
	if _, err := since.Renew(t.Context(), ttl); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of what was granted since: %v; want ErrLost", err)
	}
	if g := try(claimed(other, "since", ttl)); g.Fence <= last {
		t.Errorf("fence %d after %d", g.Fence, last)
	}
	again := claimed(other, "released", short)
	claimtest.Eventually(t, "what was released since is free", func() bool { _, err := again.Try(t.Context()); return err == nil })
	if err := kept.Release(t.Context(), driver.End{}); err != nil {
		t.Errorf("Release: %v", err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Errorf("the waiter: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the waiter is not granted")
	}
}
