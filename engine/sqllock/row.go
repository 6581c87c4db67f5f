package sqllock

import (
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A row is what the database says about one resource at its instant now, without what has
// expired. The exclusive lease, or what lingers in its place, has columns of its own, for
// the statements that need nothing else; in the record it stands before all others.
type row struct {
	record.Record
	name   string
	now    record.Instant
	floor  uint64 // of the numbers of grants that are given now
	rev    int64  // grows with every change; 0: there is no row
	damage error  // why some of it could not be read; that is empty then
}

// columns are the row's but for the name and those that a record needs no more.
type columns struct {
	fence, raised  int64
	owner          string
	expires, since int64 // of the exclusive lease
	note           string
	crowd          int64  // until then the record may have somebody who counts
	record         string // all else, as JSON
}

// scan reads the database's instant, the floor, a name and stateColumns.
func scan(rows *sql.Rows) (*row, error) {
	var r row
	var c columns
	err := rows.Scan(&r.now, &r.floor, &r.name, &c.fence, &c.owner, &c.expires, &c.since, &c.note, &r.rev, &c.raised, &c.record)
	switch {
	case err == nil:
		r.decode(&c)
	case rows.Err() != nil:
		return nil, err
	default: // a column is of no type of ours
		r.damage = fmt.Errorf("%w: row of %q: %w", driver.ErrCorrupt, r.name, err)
	}
	return &r, nil
}

// decode reads the record, and puts the exclusive lease before all that it has.
func (r *row) decode(c *columns) {
	rec, err := record.Decode([]byte(c.record))
	if err != nil {
		r.damage = fmt.Errorf("row of %q: %w", r.name, err)
	}
	r.Record = rec
	r.Fence, r.Raised = max(rec.Fence, uint64(max(0, c.fence))), uint64(max(0, c.raised))
	if record.Instant(c.expires) > r.now {
		alone := record.Claim{Owner: c.owner, Status: record.Holding, Fence: r.Fence, Since: c.since, Ends: c.expires, Note: c.note}
		if c.owner == "" {
			alone.Status = record.Lingering
		}
		r.Claims = slices.Insert(r.Claims, 0, alone)
	}
	r.DropOver(r.now)
}

// encode is the reverse of decode.
func (r *row) encode() columns {
	rest := record.Record{Claims: slices.Clone(r.Claims)}
	c := columns{fence: int64(r.Fence)}
	if i := slices.IndexFunc(rest.Claims, alone); i >= 0 {
		c.owner, c.expires, c.since, c.note = rest.Claims[i].Owner, rest.Claims[i].Ends, rest.Claims[i].Since, rest.Claims[i].Note
		rest.Claims = slices.Delete(rest.Claims, i, i+1)
	}
	for i := range rest.Claims {
		one := &rest.Claims[i]
		rest.Fence = max(rest.Fence, one.Fence)
		if one.Status != record.Evicted {
			c.crowd = max(c.crowd, one.Ends)
		}
	}
	c.record = string(rest.Encode())
	return c
}

// alone reports whether the claim is the one with columns of its own.
func alone(c record.Claim) bool {
	return c.Mode == driver.Exclusive && (c.Status == record.Holding || c.Status == record.Lingering)
}

// next are those in the queue whose turn it is, by what they are called.
func (r *row) next() (all []string) {
	for owner := range r.Next {
		all = append(all, called(owner))
	}
	return all
}

// called is what of a waiter's owner is told to all who listen; "" of the shortest: then
// some driver should look.
func called(owner string) string {
	letters := []rune(owner)
	return string(letters[:min(8, len(letters)/2)])
}

// leaseOf is the number of owner's lease, 0 if it has none.
func (r *row) leaseOf(owner string) (number int64) {
	for _, c := range r.Claims {
		if c.Owner == owner && c.Status == record.Holding {
			return int64(c.Fence)
		}
	}
	return 0
}

// ahead counts the waiters before owner's place; all of them if it has none.
func (r *row) ahead(owner string) (n int) {
	for _, c := range r.Claims {
		if c.Status == record.Waiting && c.Owner == owner {
			break
		}
		if c.Status == record.Waiting {
			n++
		}
	}
	return n
}

// roundUp is d as the tables have it.
func roundUp(d time.Duration) time.Duration {
	if left := d % time.Microsecond; left > 0 && d < math.MaxInt64-time.Microsecond {
		d += time.Microsecond - left
	}
	return d
}
