package databases

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// TablesRestored replaces the tables by earlier ones, as from a dump, while drivers with prepared
// statements are in use. Holders from before still hold. Later holders learn that they have lost. A
// lease that was released since is free when it expires. Fences grow.
func TablesRestored(t *testing.T, s Server) {
	one, other, operator := s.migrated(t, s.Address), s.migrated(t, s.Address), s.migrated(t, s.Address)
	const short = 5 * time.Second
	claimed := func(d driver.Driver, name string, ttl time.Duration) driver.Claim {
		return claimtest.New(t, d, driver.Request{Resource: name, Owner: fmt.Sprint(name, time.Now().UnixNano()), TTL: ttl})
	}
	kept, released := claimed(one, "kept", time.Minute), claimed(one, "released", short)
	fence := mustTry(t, kept)
	mustTry(t, released)
	mustExec(t, operator.DB, "CREATE TABLE copied AS SELECT * FROM leasehold_locks")
	mustRelease(t, released)
	since, next := claimed(one, "since", time.Minute), claimed(other, "released", short)
	mustTry(t, since)
	last := mustTry(t, next)
	mustRelease(t, next)

	mustExec(t, operator.DB, "DROP TABLE leasehold_locks", "DROP TABLE leasehold_fences", "DROP TABLE leasehold_meta")
	if _, err := kept.Renew(t.Context(), time.Minute); !errors.Is(err, sqllock.ErrNoSchema) {
		t.Errorf("Renew without tables: %v; want ErrNoSchema", err)
	}
	again := s.migrated(t, s.Address)
	mustExec(t, again.DB, "INSERT INTO leasehold_locks SELECT * FROM copied")

	if g, err := kept.Renew(t.Context(), time.Minute); err != nil || g.Fence != fence {
		t.Errorf("Renew of before: %v, %v; want fence %d", g, err, fence)
	}
	if _, err := since.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of what was granted since: %v; want ErrLost", err)
	}
	for _, d := range []Store{one, other} {
		c := claimed(d, "released", short)
		until(t, "what was released since is granted", time.Minute, func() bool {
			g, err := c.Try(t.Context())
			if err != nil && !errors.Is(err, driver.ErrBusy) {
				t.Fatalf("Try: %v", err)
			}
			if err == nil && g.Fence <= last {
				t.Errorf("fence %d after %d", g.Fence, last)
			}
			return err == nil
		})
		mustRelease(t, c)
	}
}

// FormerVersion migrates tables of version 2, which file of the schema creates. Several processes
// do so at once, beside a program of that version that holds and waits.
func FormerVersion(t *testing.T, file string, open func() (Store, error)) {
	opened := func() Store {
		s, err := open()
		return Opened(t, s, err)
	}
	schema, err := os.ReadFile("../../engine/sqllock/schema/" + file)
	if err != nil {
		t.Fatal(err)
	}
	former := opened()
	for statement := range strings.SplitSeq(strings.ReplaceAll(string(schema), "{p}", "leasehold_"), ";\n") {
		if strings.TrimSpace(statement) != "" && !strings.HasPrefix(statement, "BEGIN") {
			mustExec(t, former.DB, statement)
		}
	}
	now := time.Now()
	ends := now.Add(5 * time.Second)
	const grants = "INSERT INTO leasehold_locks (name, fence, owner, expires, since, note, rev, crowd, record) VALUES ('%s', %d, 'holder', %d, %d, '', 1, %d, '%s')"
	mustExec(t, former.DB, fmt.Sprintf(grants, "held", now.UnixMicro(), now.Add(time.Hour).UnixMicro(), now.UnixMicro(), ends.UnixMicro(), fmt.Sprintf(
		`{"v":1,"claims":[{"owner":"former waiter","ttl":5000000000,"wants":60000000000,"beat":1,"since":%d,"ends":%d}]}`, now.UnixMicro(), ends.UnixMicro())))
	if err := Try(t, opened(), "held"); !errors.Is(err, sqllock.ErrFormer) {
		t.Errorf("Try before Migrate: %v; want ErrFormer", err)
	}
	var all sync.WaitGroup
	for range 8 {
		d := opened()
		all.Go(func() {
			if err := d.Migrate(t.Context()); err != nil {
				t.Errorf("Migrate: %v", err)
			}
		})
	}
	all.Wait()
	d := opened()
	waiter := claimOf(t, d, driver.Request{Resource: "held", Queue: true})
	if _, err := waiter.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try of what a program of the former version holds: %v; want busy", err)
	}
	mustExec(t, former.DB, "UPDATE leasehold_locks SET owner = '', expires = 0, rev = rev + 1 WHERE name = 'held'",
		fmt.Sprintf(grants, "since", now.UnixMicro(), now.Add(time.Hour).UnixMicro(), now.UnixMicro(), 0, `{"v":1}`))
	until(t, "the waiter is granted behind one of the former version", time.Minute, func() bool {
		_, err := waiter.Try(t.Context())
		if err == nil && time.Now().Before(ends) {
			t.Error("it is granted before the waiter of the former version, which came first")
		}
		return err == nil
	})
	if err := Try(t, d, "since"); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("Try of what the former version has taken since: %v; want busy", err)
	}
}
