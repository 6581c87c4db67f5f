package databases

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// SmallBefore checks that no renewal and no read scans the rows of others after a few leases have
// become thousands. Neither the server's statistics, which it does not collect by itself, nor the
// plans that the connection has cached reflect that. analyze collects statistics. scanned returns
// how many rows were read sequentially so far.
func SmallBefore(t *testing.T, start func(t *testing.T) (s Store, analyze func(), scanned func() string)) {
	for _, few := range []int{1, 30, 600} {
		t.Run(fmt.Sprint(few), func(t *testing.T) {
			t.Parallel()
			s, analyze, scanned := start(t)
			smallBefore(t, s, few, analyze, scanned)
		})
	}
}

func smallBefore(t *testing.T, s Store, few int, analyze func(), scanned func() string) {
	const others, own = 10000, 500
	s.DB.SetMaxOpenConns(1) // it keeps its plans
	insert := func(name string, rows int, life time.Duration) {
		now := time.Now().UnixMicro()
		var all []string
		for i := range rows {
			all = append(all, fmt.Sprintf(`('%s/%d', %d, 'owner/%d', %d, %d, '', %d, 0, '{"v":1}')`, name, i, now, i, now+life.Microseconds(), now, now))
		}
		mustExec(t, s.DB, `INSERT INTO leasehold_locks (name, fence, owner, expires, since, note, rev, crowd, record) VALUES `+strings.Join(all, ", "))
	}
	take := func(name string, n int) []driver.Claim {
		claims := make([]driver.Claim, n)
		for i := range claims {
			var err error
			claims[i], err = s.Claim(driver.Request{Resource: fmt.Sprint(name, "/", i), Owner: "me", TTL: time.Hour})
			if err == nil {
				_, err = claims[i].Try(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return claims
	}
	renew := func(claims []driver.Claim) error {
		renewals := make([]driver.Renewal, len(claims))
		for i, c := range claims {
			renewals[i] = driver.Renewal{Claim: c, TTL: time.Hour}
		}
		s.RenewAll(t.Context(), renewals)
		for _, r := range renewals {
			if r.Err != nil {
				return r.Err
			}
		}
		return nil
	}
	lost := func(claims []driver.Claim) error {
		if err := renew(claims); !errors.Is(err, driver.ErrLost) {
			return fmt.Errorf("renewals of lost leases: %w", err)
		}
		return nil
	}
	look := func() error {
		_, err := s.Inspect(t.Context(), "own/0")
		return err
	}

	insert("ended", few, time.Millisecond)
	gone, first := take("gone", 1), take("first", 1)
	mustExec(t, s.DB, "DELETE FROM leasehold_locks WHERE name LIKE 'gone/%'")
	analyze()
	for range 10 { // PostgreSQL caches a plan after five executions
		if err := errors.Join(renew(first), look(), lost(gone)); err != nil {
			t.Fatal(err)
		}
	}
	insert("other", others, time.Hour)
	claims := take("own", own)
	rows := func() int {
		n, err := strconv.Atoi(scanned())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	check := func(what string, call func() error) {
		before, start := rows(), time.Now()
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		took := time.Since(start)
		if n := rows() - before; n >= others/2 {
			t.Errorf("%s went through %d rows, in %v; others have %d", what, n, took, others)
		}
	}
	for range 10 { // because it may choose another plan
		check("a renewal of many", func() error { return renew(claims) })
	}
	check("a look", look)
	mustExec(t, s.DB, "DELETE FROM leasehold_locks WHERE name LIKE 'own/%'")
	check("a renewal of what is lost", func() error { return lost(claims) })
}
