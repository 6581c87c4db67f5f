package sqllock

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A row is what the database knows about one resource at its instant now, without expired claims.
// The exclusive lease, or the hold that lingers after it, has columns of its own, so that plain
// statements need no record. In the decoded record it comes first.
type row struct {
	record.Record
	name   string
	now    record.Instant
	floor  uint64  // the least number for a grant that is given now
	rev    int64   // grows with every change; 0: there is no row
	served int64   // places with numbers up to it are over
	crowd  int64   // the column as it was read
	places []place // the first places that count, in order; all of them unless there are inView
	recall int64   // until when owners that this change grants or renews listen for waiters; negative: for each place; 0: none does
	damage error   // why a part could not be read; that part is empty
}

// A place is a waiter's row that counts. In the decoded record it is a waiting claim.
type place struct {
	seq, ends int64 // ends: with its process's heartbeat
	owner     string
	mode      driver.Mode
	limit     int // for a claim with a weight, weight and limit together; see stored
	wants     int64
	note      string
}

// A place with a weight is stored as an exclusive one with a limit, which no other exclusive place
// has. So a program that knows no weights never grants it beside others, and the table needs no new
// column.
const (
	heavyBits = 32
	mostLimit = 1<<heavyBits - 1
)

// stored returns the columns mode and limit of a place.
func stored(req *driver.Request) (mode, limit int) {
	if req.Weight < 2 || req.Mode == driver.Exclusive {
		return int(req.Mode), req.Limit
	}
	return int(driver.Exclusive), req.Weight<<heavyBits | min(req.Limit, mostLimit)
}

// claim returns the place as a claim of the record.
func (p *place) claim() record.Claim {
	c := record.Claim{Owner: p.owner, Mode: p.mode, Limit: p.limit, TTL: placeTTL, Wants: time.Duration(p.wants) * time.Microsecond, Since: p.seq, Ends: p.ends, Note: p.note}
	if p.mode == driver.Exclusive && p.limit > 0 {
		c.Mode, c.Weight, c.Limit = driver.Shared, p.limit>>heavyBits, p.limit&mostLimit
	}
	return c
}

// UnmarshalJSON reads a place from the list that {places} returns.
func (p *place) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&p.seq, &p.owner, &p.mode, &p.limit, &p.wants, &p.note, &p.ends})
}

// columns are the columns of a row that encode writes and decode reads.
type columns struct {
	fence, raised  int64
	owner          string
	expires, since int64 // of the exclusive lease
	note           string
	crowd          int64  // until then the record or a place may matter, and plain statements refuse
	record         string // everything else, as JSON
	served         int64
}

// scan reads the database's instant, the floor, a name and stateColumns.
func scan(rows *sql.Rows) (*row, error) {
	var r row
	var c columns
	var places string
	err := rows.Scan(&r.now, &r.floor, &r.name, &c.fence, &c.owner, &c.expires, &c.since, &c.note, &r.rev, &c.raised, &c.record, &c.served, &c.crowd, &places)
	switch {
	case err == nil:
		r.decode(&c, places)
	case rows.Err() != nil:
		return nil, err
	default: // a column has another type than ours
		r.damage = fmt.Errorf("%w: row of %q: %w", driver.ErrCorrupt, r.name, err)
	}
	return &r, nil
}

// decode reads the record. It adds the exclusive lease in front of the record's claims, and the
// places behind them.
func (r *row) decode(c *columns, places string) {
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
	r.served, r.crowd = c.served, c.crowd
	if places != "" {
		var all []place
		if err := json.Unmarshal([]byte(places), &all); err != nil {
			r.damage = cmp.Or(r.damage, fmt.Errorf("%w: places of %q: %w", driver.ErrCorrupt, r.name, err))
		}
		r.line(all)
	}
	r.DropOver(r.now)
}

// line adds the places behind the claims of the record.
func (r *row) line(places []place) {
	r.places = places
	slices.SortFunc(r.places, func(a, b place) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.owner, b.owner)) })
	for _, p := range r.places {
		// A place may be left over from an owner that holds or was given up.
		if !slices.ContainsFunc(r.Claims, func(c record.Claim) bool { return c.Owner == p.owner && c.Status != record.Evicted }) {
			c := p.claim()
			c.Ends = min(c.Ends, int64(r.now)+record.Micros(placeTTL))
			r.Claims = append(r.Claims, c)
		}
	}
}

// placeOf returns the owner's place, if it is among those that were read.
func (r *row) placeOf(owner string) *place {
	for i := range r.places {
		if r.places[i].owner == owner {
			return &r.places[i]
		}
	}
	return nil
}

// hides reports whether the owner's place may be behind those that were read. Then it must wait.
func (r *row) hides(owner string) bool {
	return len(r.places) >= inView && r.placeOf(owner) == nil && !r.Holds(owner)
}

// lapses reports whether newcomers that ask by one statement will soon no longer be refused.
func (r *row) lapses() bool { return r.crowd < int64(r.now)+record.Micros(placeTTL)/2 }

// obstacle is [record.Record.Obstacle] for the places that were read.
func (r *row) obstacle(req *driver.Request) record.Answer {
	a := r.Obstacle(r.now, req)
	if a.Granted && r.hides(req.Owner) {
		a.Granted, a.Until = false, keepPlace
	}
	return a
}

// try is [record.Record.Try] for the places that were read. It adds no place to the record.
func (r *row) try(req *driver.Request) (a record.Answer, changed bool) {
	if r.hides(req.Owner) {
		return r.obstacle(req), false
	}
	return r.Try(r.now, req, 0, r.floor)
}

// waitsAt reports whether the place still waits in the record.
func (r *row) waitsAt(p place) bool {
	return slices.ContainsFunc(r.Claims, func(c record.Claim) bool { return c.Owner == p.owner && c.Status == record.Waiting })
}

// hasRoomFor reports whether another claim like req would be granted, if req is shared.
func (r *row) hasRoomFor(req *driver.Request) bool {
	if req.Mode != driver.Shared {
		return false
	}
	another := *req
	another.Owner = ""
	a := r.obstacle(&another)
	return a.Granted && !a.Heavy
}

// listens records that the holder of req listens for others.
func (r *row) listens(req *driver.Request) {
	c, err := r.Lease(req.Owner)
	if err != nil {
		return
	}
	until := max(r.recall, -r.recall, c.Ends)
	if r.recall < 0 || asksFor(req) == asksEach {
		until = -until
	}
	r.recall = until
}

// encode is the reverse of decode. The places stay in their table. Those up to served are over, as
// the first of them were granted.
func (r *row) encode() columns {
	rest := record.Record{Claims: slices.Clone(r.Claims), Limit: r.Limit}
	c := columns{fence: int64(r.Fence)}
	if i := slices.IndexFunc(rest.Claims, alone); i >= 0 {
		c.owner, c.expires, c.since, c.note = rest.Claims[i].Owner, rest.Claims[i].Ends, rest.Claims[i].Since, rest.Claims[i].Note
		rest.Claims = slices.Delete(rest.Claims, i, i+1)
	}
	served, waiting := r.over()
	c.served = served
	if waiting {
		c.crowd = max(r.crowd, int64(r.now)+record.Micros(placeTTL))
	}
	rest.Claims = slices.DeleteFunc(rest.Claims, func(one record.Claim) bool { return one.Status == record.Waiting && r.placeOf(one.Owner) != nil })
	for i := range rest.Claims {
		one := &rest.Claims[i]
		rest.Fence = max(rest.Fence, one.Fence)
		if one.Status != record.Evicted {
			c.crowd = max(c.crowd, one.Ends)
		}
	}
	if r.Limit > 0 {
		c.crowd = max(c.crowd, int64(r.now)+limitLife)
	}
	c.record = string(rest.Encode())
	return c
}

// over returns the number up to which places are over, and whether others still count.
func (r *row) over() (served int64, waiting bool) {
	served = r.served
	for i, p := range r.places {
		if r.waitsAt(p) {
			return served, true
		}
		if i+1 == len(r.places) || r.places[i+1].seq != p.seq { // in MySQL, two places that come at once may have the same number
			served = p.seq
		}
	}
	return served, false
}

// limitLife is how long a row with an operator's limit is kept, in microseconds, even by programs
// that know no limits: a century.
const limitLife = 100 * 365 * 86400 * 1000000

// alone reports whether the claim is the one with columns of its own.
func alone(c record.Claim) bool {
	return c.Mode == driver.Exclusive && (c.Status == record.Holding || c.Status == record.Lingering)
}

// next returns the names of the waiters whose turn it is, as called abbreviates them.
func (r *row) next() (all []string) {
	for owner := range r.Next {
		all = append(all, called(owner))
	}
	return all
}

// called returns the part of a waiter's owner that messages reveal to all listeners. For the
// shortest owner it is "", which makes some driver look.
func called(owner string) string {
	letters := []rune(owner)
	return string(letters[:min(8, len(letters)/2)])
}

// roundUp returns d in the resolution of the tables, rounded up unless that overflows.
func roundUp(d time.Duration) time.Duration {
	return max(d, time.Duration(record.Micros(d))*time.Microsecond)
}
