package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A fakeRow is one row as a database has it, and what becomes of statements about it. Its fields
// are for tests in a synctest bubble.
type fakeRow struct {
	d *Driver

	rev, fence, served int64
	record             string
	places             string

	sent  []string      // read, write, join or other, in order
	hold  chan struct{} // statements wait for an element of it; nil: they do not
	reads func()        // called after a read; nil: nothing
	saves func() (lost bool)
	stuck string // such statements hang
}

func newFakeRow(t *testing.T) *fakeRow {
	s := &fakeRow{rev: 3, record: nothing, places: "[]"}
	s.d = scripted(t, s.answer)
	return s
}

var errSilent = errors.New("no answer")

func (s *fakeRow) answer(ctx context.Context, d *Driver, text string, args []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
	what := map[string]string{d.texts.state: "read", d.texts.save: "write", d.texts.join: "join"}[text]
	if what == "" {
		s.sent = append(s.sent, "other")
		return nil, nil
	}
	s.sent = append(s.sent, what)
	if what == s.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch what {
	case "read":
		now := time.Now().UnixMicro()
		row := []sqldriver.Value{now, now, "x", s.fence, "", int64(0), int64(0), "", s.rev, int64(0), s.record, s.served, int64(0), s.places}
		if s.reads != nil {
			s.reads()
		}
		return [][]sqldriver.Value{row}, nil
	case "write":
		lost := s.saves != nil && s.saves()
		if args[9].Value.(int64) != s.rev {
			return nil, nil
		}
		s.fence, s.record, s.served = args[1].Value.(int64), args[7].Value.(string), args[8].Value.(int64)
		s.rev++
		if lost {
			return nil, errSilent
		}
		return [][]sqldriver.Value{{s.rev}}, nil
	default:
		return nil, nil
	}
}

// holders are the owners of the record.
func (s *fakeRow) holders(t *testing.T) (all []string) {
	t.Helper()
	rec, err := record.Decode([]byte(s.record))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range rec.Claims {
		if c.Status == record.Holding {
			all = append(all, c.Owner)
		}
	}
	return all
}

// write is what another process does: it changes the row.
func (s *fakeRow) write(change func(r *record.Record)) {
	rec, _ := record.Decode([]byte(s.record)) // ours
	change(&rec)
	s.fence, s.record = max(s.fence, int64(rec.Fence)), string(rec.Encode())
	s.rev++
}

// A tried is a claim whose Try has begun.
type tried struct {
	*claim
	outcome func() (driver.Grant, error)
}

// try begins a Try for "x".
func (s *fakeRow) try(t *testing.T, ctx context.Context, req driver.Request) tried {
	t.Helper()
	req.Resource, req.Mode, req.TTL = "x", shared, time.Minute
	c := claimed(t, s.d, req)
	type answer struct {
		g   driver.Grant
		err error
	}
	done := make(chan answer, 1)
	go func() {
		g, err := c.Try(ctx)
		done <- answer{g, err}
	}()
	synctest.Wait()
	return tried{c, func() (driver.Grant, error) { a := <-done; return a.g, a.err }}
}

// A shared claim that meets no others costs what it must: the first takes a place, as another may have come before. Once
// there was room, the row is enough.
func TestStatementsOfASharedClaimAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			queue       bool
			first, next []string
		}{
			{true, []string{"other", "join", "read", "write", "read", "write"}, []string{"read", "write", "read", "write"}},
			{false, []string{"read", "write", "read", "write"}, []string{"read", "write", "read", "write"}},
		} {
			s := newFakeRow(t)
			for i, want := range [][]string{test.first, test.next, test.next} {
				s.sent = nil
				c := s.try(t, t.Context(), driver.Request{Owner: fmt.Sprint(i), Queue: test.queue, Limit: 2})
				if _, err := c.outcome(); err != nil {
					t.Fatal(err)
				}
				if err := c.Release(t.Context(), driver.End{}); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(s.sent, want) {
					t.Errorf("queue %v, cycle %d: %q, want %q", test.queue, i, s.sent, want)
				}
			}
			s.d.watch.close()
		}
	})
}

// A claim that asks the row first passes nobody who waits: it takes a place behind them.
func TestAskingTheRowPassesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeRow(t)
		s.d.roomy.note("x", true)
		s.write(func(r *record.Record) {
			r.Fence = 7
			r.Claims = []record.Claim{{Owner: "holder", Mode: shared, Limit: 3, Status: record.Holding, Fence: 7, TTL: time.Hour, Ends: time.Now().Add(time.Hour).UnixMicro()}}
		})
		_, limit := stored(&driver.Request{Mode: shared, Limit: 3, Weight: 3})
		s.places = fmt.Sprintf(`[[7, "heavy", 0, %d, 1000000, "", %d]]`, limit, time.Now().Add(time.Hour).UnixMicro())
		c := s.try(t, t.Context(), driver.Request{Owner: "light", Queue: true, Limit: 3})
		if _, err := c.outcome(); !errors.Is(err, driver.ErrBusy) || c.phase != queued {
			t.Errorf("%v in phase %d; want a place behind the heavy one", err, c.phase)
		}
		if s.d.roomy.has("x") || !slices.Contains(s.sent, "join") || slices.Contains(s.sent, "write") {
			t.Errorf("statements %q, still taken for roomy: %v", s.sent, s.d.roomy.has("x"))
		}
		s.d.watch.close()
	})
}
