package sqllock

import (
	"cmp"
	"database/sql"
	"encoding/json"
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
	floor  uint64  // of the numbers of grants that are given now
	rev    int64   // grows with every change; 0: there is no row
	served int64   // places up to it are over
	crowd  int64   // as it was read
	places []place // the first that count, in order; all that do not stand behind others
	recall int64   // until when those listen for others who are granted or renew; negative: for each; 0: none does
	damage error   // why some of it could not be read; that is empty then
}

// A place is what the table has of one that counts. In the record it is a claim that waits.
type place struct {
	seq, ends int64 // ends with its process' beat
	owner     string
	mode      driver.Mode
	limit     int // of one with a weight, all that heavyAs has put into it
	wants     int64
	note      string
}

// A place with a weight is stored as an exclusive one with a limit, which none has otherwise. So a
// program that knows no weights never lets it in beside others, and needs no other table.
const (
	heavyBits = 32
	mostLimit = 1<<heavyBits - 1
)

// stored are the columns of mode and limit of a place.
func stored(req *driver.Request) (mode, limit int) {
	if req.Weight < 2 || req.Mode == driver.Exclusive {
		return int(req.Mode), req.Limit
	}
	return int(driver.Exclusive), req.Weight<<heavyBits | min(req.Limit, mostLimit)
}

// claim is the place as the record has it.
func (p *place) claim() record.Claim {
	c := record.Claim{Owner: p.owner, Mode: p.mode, Limit: p.limit, TTL: placeTTL, Wants: time.Duration(p.wants) * time.Microsecond, Since: p.seq, Ends: p.ends, Note: p.note}
	if p.mode == driver.Exclusive && p.limit > 0 {
		c.Mode, c.Weight, c.Limit = driver.Shared, p.limit>>heavyBits, p.limit&mostLimit
	}
	return c
}

// UnmarshalJSON reads the list that {places} has of one.
func (p *place) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&p.seq, &p.owner, &p.mode, &p.limit, &p.wants, &p.note, &p.ends})
}

// columns are the row's but for the name and those that a record needs no more.
type columns struct {
	fence, raised  int64
	owner          string
	expires, since int64 // of the exclusive lease
	note           string
	crowd          int64  // until then the record may have somebody who counts
	record         string // all else, as JSON
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
	default: // a column is of no type of ours
		r.damage = fmt.Errorf("%w: row of %q: %w", driver.ErrCorrupt, r.name, err)
	}
	return &r, nil
}

// decode reads the record, and puts the exclusive lease before all that it has, and the places behind it.
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

// line puts the places behind all that the record has.
func (r *row) line(places []place) {
	r.places = places
	slices.SortFunc(r.places, func(a, b place) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.owner, b.owner)) })
	for _, p := range r.places {
		// Of one that holds, or was given up, a place may have been left.
		if !slices.ContainsFunc(r.Claims, func(c record.Claim) bool { return c.Owner == p.owner && c.Status != record.Evicted }) {
			c := p.claim()
			c.Ends = min(c.Ends, int64(r.now)+record.Micros(placeTTL))
			r.Claims = append(r.Claims, c)
		}
	}
}

// placeOf is the place of owner in the table, if it is in view.
func (r *row) placeOf(owner string) *place {
	for i := range r.places {
		if r.places[i].owner == owner {
			return &r.places[i]
		}
	}
	return nil
}

// hides reports whether owner may stand behind places that were not read. It waits then.
func (r *row) hides(owner string) bool {
	return len(r.places) >= inView && r.placeOf(owner) == nil && !r.Holds(owner)
}

// lapses reports whether newcomers that ask by one statement are refused no longer than for a while.
func (r *row) lapses() bool { return r.crowd < int64(r.now)+record.Micros(placeTTL)/2 }

// obstacle is Obstacle of what was read.
func (r *row) obstacle(req *driver.Request) record.Answer {
	a := r.Obstacle(r.now, req)
	if a.Granted && r.hides(req.Owner) {
		a.Granted, a.Until = false, keepPlace
	}
	return a
}

// try is Try of what was read, and keeps no place.
func (r *row) try(req *driver.Request) (a record.Answer, changed bool) {
	if r.hides(req.Owner) {
		return r.obstacle(req), false
	}
	return r.Try(r.now, req, 0, r.floor)
}

// waitsAt reports whether the place is still one, as the record has it.
func (r *row) waitsAt(p place) bool {
	return slices.ContainsFunc(r.Claims, func(c record.Claim) bool { return c.Owner == p.owner && c.Status == record.Waiting })
}

// waitedFor reports whether others than owner wait, among the places that were read.
func (r *row) waitedFor(owner string) bool {
	return slices.ContainsFunc(r.Claims, func(c record.Claim) bool { return c.Status == record.Waiting && c.Owner != owner })
}

// hasRoomFor reports whether another claim like req, which is shared, would be granted.
func (r *row) hasRoomFor(req *driver.Request) bool {
	if req.Mode != driver.Shared {
		return false
	}
	another := *req
	another.Owner = ""
	a := r.obstacle(&another)
	return a.Granted && !a.Heavy
}

// listens notes that the owner of req, which holds, listens for others.
func (r *row) listens(req *driver.Request) {
	for i := range r.Claims {
		c := &r.Claims[i]
		if c.Owner != req.Owner || c.Status != record.Holding {
			continue
		}
		until := max(r.recall, -r.recall, c.Ends)
		if r.recall < 0 || asksFor(req) == asksEach {
			until = -until
		}
		r.recall = until
	}
}

// encode is the reverse of decode. The places stay in their table: what was granted to the first of them is over.
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

// over returns up to which number places are over, and whether others still count.
func (r *row) over() (served int64, waiting bool) {
	served = r.served
	for i, p := range r.places {
		if r.waitsAt(p) {
			return served, true
		}
		if i+1 == len(r.places) || r.places[i+1].seq != p.seq { // MySQL numbers two alike that come at once
			served = p.seq
		}
	}
	return served, false
}

// limitLife is how long a row with an operator's limit is kept, in microseconds, also by programs that
// know no limits: a century.
const limitLife = 100 * 365 * 86400 * 1000000

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

// roundUp is d as the tables have it.
func roundUp(d time.Duration) time.Duration {
	if left := d % time.Microsecond; left > 0 && d < math.MaxInt64-time.Microsecond {
		d += time.Microsecond - left
	}
	return d
}
