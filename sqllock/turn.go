package sqllock

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// status is what a claim row stands for.
type status uint8

const (
	waiting   status = iota // a place in the queue
	holding                 // a shared lease
	evicted                 // a lease that an operator ended; note is the reason; kept until it would have expired
	lingering               // a hold without an owner
	gone                    // a claim that was given up while an attempt was on its way: keeps that from being granted
)

// lockRow is one row of locks: the exclusive holder and the last fence. Instants are
// milliseconds of the database's clock.
type lockRow struct {
	name    string
	fence   int64 // last given
	owner   string
	expires int64
	since   int64
	note    string
	rev     int64 // 0: there is no row
	raised  int64 // later fences are above it, too
}

// claimRow is one claim of a row, as its JSON has it.
type claimRow struct {
	Ticket  int64       `json:"ticket"` // order of the first Try
	Owner   string      `json:"owner,omitempty"`
	Mode    driver.Mode `json:"mode,omitempty"`
	Status  status      `json:"status,omitempty"`
	Limit   int         `json:"limit,omitempty"`
	Fence   int64       `json:"fence,omitempty"`
	Expires int64       `json:"expires"`
	Since   int64       `json:"since"`
	Note    string      `json:"note,omitempty"`
}

// resource is what the database says about one name at its instant now.
type resource struct {
	now    int64
	floor  int64 // of fences that are given now
	lock   lockRow
	claims []claimRow // by ticket; live ones only
	damage error      // why some of it could not be read; that is empty then
}

// heldBy reports whether owner has the live exclusive lease.
func (r *resource) heldBy(owner string) bool {
	return r.lock.owner == owner && r.lock.expires > r.now
}

// claimOf returns owner's live place or shared lease, or nil.
func (r *resource) claimOf(owner string) *claimRow {
	for i := range r.claims {
		if c := &r.claims[i]; c.Owner == owner && c.Status <= holding {
			return c
		}
	}
	return nil
}

// nextTicket is behind all that are there.
func (r *resource) nextTicket() int64 {
	if n := len(r.claims); n > 0 {
		return r.claims[n-1].Ticket + 1
	}
	return 1
}

// nextFence is above all earlier ones. The floor makes it grow even if the row was lost;
// microseconds since 1970 fit in 53 bits until the year 2255.
func (r *resource) nextFence() int64 {
	return max(r.lock.fence+1, r.lock.raised+1, r.floor)
}

// obstacle returns the first instant at which something ends that stands between req
// and a grant, or 0 if nothing does. In the way are holders that do not go together with
// req, and waiters ahead of it: those that share have their slots kept for them.
func (r *resource) obstacle(req *driver.Request) int64 {
	place := int64(math.MaxInt64)
	if mine := r.claimOf(req.Owner); mine != nil {
		place = mine.Ticket
	}
	var ahead queue.Ahead
	if r.lock.expires > r.now {
		ahead.Add(queue.Claim{Mode: driver.Exclusive, Ends: r.lock.expires})
	}
	for _, c := range r.claims {
		switch {
		case c.Status == evicted, c.Status == gone, c.Status == waiting && c.Ticket >= place:
		default:
			ahead.Add(queue.Claim{Mode: c.Mode, Limit: c.Limit, Ends: c.Expires})
		}
	}
	until, blocked := ahead.Until(queue.Claim{Mode: req.Mode, Limit: req.Limit})
	if !blocked {
		return 0
	}
	return until
}

// next are those in the queue whose turn it is, by what they are called.
func (r *resource) next() []string {
	var all []string
	for _, c := range r.claims {
		if c.Status == waiting && r.obstacle(&driver.Request{Owner: c.Owner, Mode: c.Mode, Limit: c.Limit}) == 0 {
			all = append(all, called(c.Owner))
		}
	}
	return all
}

// called is what of a waiter's owner is told to all who listen; "" of the shortest: then
// some driver should look.
func called(owner string) string {
	letters := []rune(owner)
	return string(letters[:min(8, len(letters)/2)])
}

// crowd is the instant until which somebody in claims counts for an exclusive grant.
func (r *resource) crowd() (until int64) {
	for _, c := range r.claims {
		if c.Status != evicted {
			until = max(until, c.Expires)
		}
	}
	return until
}

// without returns the claims but owner's live place or shared lease.
func (r *resource) without(owner string) []claimRow {
	return slices.DeleteFunc(r.claims, func(c claimRow) bool { return c.Owner == owner && c.Status <= holding })
}

// ahead counts the waiters before owner's place; all of them if it has none.
func (r *resource) ahead(owner string) (n int) {
	for _, c := range r.claims {
		if c.Status == waiting && c.Owner == owner {
			break
		}
		if c.Status == waiting {
			n++
		}
	}
	return n
}

// holders lists the live leases by fence.
func (r *resource) holders() []driver.Holder {
	var all []driver.Holder
	if r.lock.expires > r.now {
		all = append(all, r.holder(driver.Exclusive, 0, r.lock.owner, r.lock.fence, r.lock.since, r.lock.expires, r.lock.note))
	}
	for _, c := range r.claims {
		switch c.Status {
		case holding:
			all = append(all, r.holder(c.Mode, c.Limit, c.Owner, c.Fence, c.Since, c.Expires, c.Note))
		case lingering:
			all = append(all, r.holder(c.Mode, c.Limit, "", c.Fence, c.Since, c.Expires, c.Note))
		}
	}
	slices.SortFunc(all, func(a, b driver.Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	return all
}

func (r *resource) holder(mode driver.Mode, limit int, owner string, fence, since, expires int64, note string) driver.Holder {
	return driver.Holder{Owner: owner, Mode: mode, Limit: limit, Fence: driver.FenceOf(fence), Note: note,
		Held: millis(r.now - since), Left: millis(expires - r.now)}
}

// waiters lists the queue in order.
func (r *resource) waiters() []driver.Waiter {
	var all []driver.Waiter
	for _, c := range r.claims {
		if c.Status == waiting {
			all = append(all, driver.Waiter{Owner: c.Owner, Note: c.Note, Mode: c.Mode, Waited: millis(r.now - c.Since)})
		}
	}
	return all
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// inMillis rounds up, so that a lease is never shorter than asked for.
func inMillis(d time.Duration) int64 {
	n := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

// dropExpired forgets claims that have ended. The lock's row says so by itself. A place or
// a mark that lasts for twice its time was made before the clock was set back. (Twice: who
// reads may have read the clock long before.)
func (r *resource) dropExpired() {
	r.claims = slices.DeleteFunc(r.claims, func(c claimRow) bool {
		left := millis(c.Expires - r.now)
		return left <= 0 || c.Status == waiting && left > 2*placeTTL || c.Status == gone && left > 2*goneTTL
	})
}
