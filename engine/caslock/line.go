package caslock

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A line is the places of a resource beside its record, in order, as this process sees them.
// resource.mu guards it.
type line struct {
	session uint64            // of the watch that reports its changes
	loaded  bool              // all places are loaded
	upTo    uint64            // it has all places up to this number of the store
	order   []*place          // by first; removed places stay until they are as many as the others
	byID    map[string]*place // places that were not removed
	removed map[string]uint64 // during loading: numbers of removals, by id
}

// A place is the place of one waiter.
type place struct {
	id      string
	process string
	claim   record.Claim // in status Waiting, with Owner, Mode, Limit, Wants, Since and Note
	version Version
	number  uint64
	first   uint64 // its position: the number of its first write
	peer    *peer
	gone    bool
}

// A peer is a process that has or had places.
type peer struct {
	silent atomic.Int32 // how many heartbeats of ours were seen since its last one
}

// silentFor is how many of our heartbeats without one of another process mean that it is dead.
const silentFor = 4

func (p *peer) dead() bool { return p.silent.Load() >= silentFor }

func newLine(session uint64) *line {
	return &line{session: session, byID: make(map[string]*place), removed: make(map[string]uint64)}
}

// put records the state of a place at a number; nil: it was removed.
func (l *line) put(id string, p *place, number uint64) {
	was := l.byID[id]
	if was != nil && was.number >= number || !l.loaded && l.removed[id] >= number {
		return
	}
	if was != nil {
		was.gone = true
		delete(l.byID, id)
		l.tidy()
	}
	if p == nil {
		if !l.loaded {
			l.removed[id] = number
		}
		return
	}
	l.byID[id] = p
	i := len(l.order)
	if i > 0 && l.order[i-1].first > p.first { // usually it is the last
		i, _ = slices.BinarySearchFunc(l.order, p.first, func(o *place, n uint64) int { return cmp.Compare(o.first, n) })
	}
	l.order = slices.Insert(l.order, i, p)
}

// tidy drops removed places: at once at the front, otherwise when they are as many as the
// others.
func (l *line) tidy() {
	first := 0
	for first < len(l.order) && l.order[first].gone {
		first++
	}
	l.order = l.order[first:]
	if len(l.order) > 2*len(l.byID)+8 {
		l.order = slices.DeleteFunc(l.order, func(p *place) bool { return p.gone })
	}
}

// alive yields the claims of the places that were not removed and whose processes live, in order.
func (l *line) alive(yield func(*record.Claim) bool) {
	for _, p := range l.order {
		if !p.gone && !p.peer.dead() && !yield(&p.claim) {
			return
		}
	}
}

// ahead returns the claims of the record, except owner's. They are ahead of all places.
func ahead(claims []record.Claim, owner string) (a queue.Ahead) {
	for i := range claims {
		c := &claims[i]
		if c.Status != record.Evicted && c.Status != record.Gone && (owner == "" || c.Owner != owner) {
			a.Add(c.Rule())
		}
	}
	return a
}

// next is [record.Next] for the places, beside claims and under an operator's limit.
func (l *line) next(claims []record.Claim, limit int) iter.Seq[string] {
	return func(yield func(owner string) bool) { record.Next(ahead(claims, ""), limit, l.alive, yield) }
}

// isNext reports whether owner's place may hold beside claims.
func (l *line) isNext(owner string, claims []record.Claim, limit int) bool {
	for next := range l.next(claims, limit) {
		if next == owner {
			return true
		}
	}
	return false
}

// admits reports whether a claim without a place may hold, behind all places.
func (l *line) admits(req *driver.Request, r *record.Record) bool {
	a := ahead(r.Claims, req.Owner)
	for c := range l.alive {
		a.Add(c.Rule())
	}
	return a.Admits(r.Decided(req))
}

// mark records in a record that will be written whether others wait beside it.
//
// A waiter first makes its place, then reads the record, and writes Some unless the record says
// Some. A process that finds no place writes Perhaps. It may replace Perhaps by Nobody once it has
// all places from before Perhaps was written. A waiter that had read Some before has a place among
// these. A waiter that reads Perhaps writes Some, and then the write of Nobody is refused.
func (l *line) mark(v *view, number uint64) {
	others := len(l.byID)
	if _, mine := l.byID[v.served]; mine {
		others--
	}
	switch {
	case others > 0:
		v.Beside = record.Some
	case v.Beside == record.Some:
		v.Beside = record.Perhaps
	case v.Beside == record.Perhaps && l.upTo >= number:
		v.Beside = record.Nobody
	}
}

// parted separates the two parts of a name.
const parted = "\x00"

// placeOf returns the name of the place of a resource's owner. Its second part does not reveal
// the owner.
func placeOf(resource, owner string) string { return resource + parted + idOf(owner) }

func idOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:16])
}

// parts splits a name; two reports whether it has two parts.
func parts(name string) (first, second string, two bool) { return strings.Cut(name, parted) }

// stored is the encoding of a place.
type stored struct {
	Version int          `json:"v"`
	Process string       `json:"process"`
	Claim   record.Claim `json:"claim"`
	First   uint64       `json:"first,omitempty"` // its position, if its process has taken it over from another
}

// Versions of the encoding. A place with another version counts as an exclusive claim of an unknown
// owner while its process lives. Programs that know only the first version treat weighted places
// so.
const storedPlain, storedWeighted = 1, 2

func placeFor(process string, req *driver.Request) *stored {
	c := record.Place(req)
	c.Since = time.Now().UnixMicro()
	version := storedPlain
	if c.Weight > 1 {
		version = storedWeighted
	}
	return &stored{Version: version, Process: process, Claim: c}
}

// at returns the encoding of a place at a position; 0: the last.
func (s stored) at(first uint64) []byte {
	s.First = first
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // all its fields can be encoded
	}
	return b
}

// storedIn decodes an item that is a place.
func storedIn(i Item) (s stored) {
	if json.Unmarshal(i.Value, &s) != nil || s.Version != storedPlain && s.Version != storedWeighted || s.Claim.Weight < 0 || s.Claim.Weight > driver.MaxWeight {
		s.Claim = record.Claim{}
	}
	return s
}

// placeIn returns the place in an item, or nil if it was removed.
func (q *crowd) placeIn(i Item) *place {
	if i.Value == nil {
		return nil
	}
	_, id, _ := parts(i.Name)
	s, number := storedIn(i), q.d.number(i.Version)
	return &place{id: id, process: s.Process, claim: s.Claim, version: i.Version, number: number, first: cmp.Or(s.First, number), peer: q.peerOf(s.Process)}
}
