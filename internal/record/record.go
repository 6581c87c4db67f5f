// Package record keeps the state of one resource as one value, and implements what each call of
// a driver changes in it. It uses no store: a driver reads the record, changes it, and writes it
// back if it is unchanged, or holds a mutex meanwhile. It uses no clock either: a Clock reports
// how much of a claim's time is left.
package record

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// A Record is the state of a resource. The zero value is a resource that was never used.
type Record struct {
	Fence  uint64  `json:"fence,omitempty"`  // the number of the last grant; its fence is driver.FenceOf(number)
	Raised uint64  `json:"raised,omitempty"` // later numbers are above it, too
	Claims []Claim `json:"claims,omitempty"` // in the order of their first attempts
	Nonce  string  `json:"nonce,omitempty"`  // of the write, for a store that distinguishes writes by their contents; "": none
	Beside Beside  `json:"beside,omitempty"` // whether others wait, for a store that keeps their places elsewhere; unknown to old programs
	Limit  int     `json:"limit,omitempty"`  // set by an operator; 0: none
}

// Beside says whether there are places that are no claims of the record.
type Beside uint8

const (
	Nobody  Beside = iota // there are none
	Some                  // there may be some: look before a grant
	Perhaps               // there may be some; a process that has looked since, and found none, may write Nobody
)

// A Status is the kind of a claim.
type Status uint8

const (
	Waiting   Status = iota // a place in the queue
	Holding                 // a lease
	Lingering               // a hold without an owner
	Evicted                 // a lease that was evicted; Note is the reason, kept until the lease would have ended
	Gone                    // an attempt that was given up and may still arrive, for a store that grants without Try too
)

// A Claim is one claim in a record.
type Claim struct {
	Owner  string        `json:"owner,omitempty"` // empty if the claim lingers
	Status Status        `json:"status,omitempty"`
	Mode   driver.Mode   `json:"mode,omitempty"`
	Limit  int           `json:"limit,omitempty"`
	Weight int           `json:"weight,omitempty"` // 0 counts as 1
	Fence  uint64        `json:"fence,omitempty"`  // the number of a lease's grant
	TTL    time.Duration `json:"ttl"`              // how long the claim lasts
	Wants  time.Duration `json:"wants,omitempty"`  // TTL of the lease that a place waits for
	Beat   uint64        `json:"beat"`             // grows whenever its time starts again
	Since  int64         `json:"since"`            // when its status began; below 0: unknown; it ends nothing; see Clock
	Ends   int64         `json:"ends,omitempty"`   // when its time is over; see Clock
	Note   string        `json:"note,omitempty"`
	Bars   bool          `json:"bars,omitempty"` // of Gone: refuses all attempts of the owner, later ones too
}

// A Clock reports the time left of claims, by an instant of the store's own clock, or by
// observing each claim.
type Clock interface {
	// Now returns an instant in microseconds, for Since.
	Now() int64
	// Left returns how much of the claim's time is left; none: it is over.
	Left(c *Claim) time.Duration
	// Knows reports whether the claim's time started TTL - Left ago. Otherwise it is longer ago.
	Knows(c *Claim) bool
	// Start restarts the claim's time; its TTL and Beat are set.
	Start(c *Claim)
}

// An Instant is a Clock: microseconds of the one clock that all users of the record share.
type Instant int64

// Now returns the instant itself.
func (n Instant) Now() int64 { return int64(n) }

// Left counts from the instant.
func (n Instant) Left(c *Claim) time.Duration {
	return time.Duration(c.Ends-int64(n)) * time.Microsecond
}

// Knows is true: there is one clock.
func (n Instant) Knows(*Claim) bool { return true }

// Start sets the end, rounded up.
func (n Instant) Start(c *Claim) { c.Ends = int64(n) + Micros(c.TTL) }

// Micros returns d in microseconds, rounded up, so that nothing ends before its time.
func Micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// An Answer is the result of an attempt.
type Answer struct {
	Granted bool
	Barred  bool          // the owner was given up: its attempts are refused
	Heavy   bool          // it is heavier than its limit: it can never be granted
	Fence   uint64        // if granted
	Until   time.Duration // if refused: when the first obstacle ends unless it is renewed
	Holder  *Claim        // if refused: a holder in the record, or nil
}

// Try attempts to grant req. If it is held already, Try restarts the lease and returns its
// fence. If it is refused, Try keeps a place for the given time, or none if that is 0. floor is
// the least number of a new grant. changed reports whether the record has changed.
func (r *Record) Try(at Clock, req *driver.Request, place time.Duration, floor uint64) (a Answer, changed bool) {
	if r.KeepsOut(req.Owner) {
		return Answer{Barred: true}, false
	}
	mine := r.Find(req.Owner)
	if mine != nil && mine.Status == Holding {
		mine.start(at, req.TTL)
		return Answer{Granted: true, Fence: driver.FenceOf(mine.Fence)}, true
	}
	if a := r.Obstacle(at, req); !a.Granted {
		if place > 0 && !a.Heavy {
			mine = r.place(at, req, mine)
			mine.Wants = req.TTL
			mine.start(at, place)
		}
		return a, place > 0 && !a.Heavy
	}
	mine = r.place(at, req, mine)
	r.Fence = r.NextFence(floor)
	mine.Status, mine.Fence, mine.Since, mine.Wants = Holding, r.Fence, at.Now(), 0
	mine.start(at, req.TTL)
	return Answer{Granted: true, Fence: driver.FenceOf(r.Fence)}, true
}

// Keep restarts the place at i, if it is owner's and another waits right before it. Then it
// cannot be granted, and the rest of the record does not matter.
func (r *Record) Keep(at Clock, i int, owner string, place time.Duration) bool {
	if i < 1 || r.Claims[i].Owner != owner || r.Claims[i].Status != Waiting || r.Claims[i].Mode != driver.Exclusive || r.Claims[i-1].Status != Waiting {
		return false
	}
	r.Claims[i].start(at, place)
	return true
}

// NextFence returns the number of a new grant: above all earlier ones, and at least floor.
func (r *Record) NextFence(floor uint64) uint64 { return max(r.Fence+1, r.Raised+1, floor) }

// start restarts the claim's time, to last for ttl.
func (c *Claim) start(at Clock, ttl time.Duration) {
	c.TTL = ttl
	c.Beat++
	at.Start(c)
}

// place returns mine, or if it is nil a new claim at the end of the queue.
func (r *Record) place(at Clock, req *driver.Request, mine *Claim) *Claim {
	if mine != nil {
		return mine
	}
	begun := Place(req)
	begun.Since = at.Now()
	r.Claims = append(r.Claims, begun)
	return &r.Claims[len(r.Claims)-1]
}

// Place returns the claim that Try keeps for req while it waits. TTL, Beat, Since and Ends are for
// the caller to set.
func Place(req *driver.Request) Claim {
	c := Claim{Owner: req.Owner, Mode: req.Mode, Limit: req.Limit, Wants: req.TTL, Note: req.Note}
	if req.Weight > 1 {
		c.Weight = req.Weight
	}
	return c
}

// Rule returns the part of the claim that the rule of the queue needs, except for its end.
func (c *Claim) Rule() queue.Claim {
	return queue.Claim{Mode: c.Mode, Limit: c.Limit, Weight: c.Weight}
}

// Decided returns the part of req that the rule needs to decide it. The operator's limit counts for
// it.
func (r *Record) Decided(req *driver.Request) queue.Claim {
	return queue.Claim{Mode: req.Mode, Limit: queue.Smaller(req.Limit, r.Limit), Weight: req.Weight}
}

// Obstacle returns why req cannot be granted yet. If nothing prevents it, the Answer is granted,
// without a fence. Holders count even behind req's place: they left room for req, but an operator
// may have lowered the limit since.
func (r *Record) Obstacle(at Clock, req *driver.Request) (a Answer) {
	var ahead queue.Ahead
	passed := false // its own place
	for i := range r.Claims {
		c := &r.Claims[i]
		if c.Status == Waiting && c.Owner == req.Owner {
			passed = true
		}
		if c.Status == Evicted || c.Status == Gone || passed && c.Status == Waiting {
			continue
		}
		one := c.Rule()
		one.Ends = int64(at.Left(c))
		ahead.Add(one)
		if a.Holder == nil && c.Status != Waiting {
			a.Holder = c
		}
	}
	mine := r.Decided(req)
	ends, blocked := ahead.Until(mine)
	a.Granted, a.Heavy, a.Until = !blocked, mine.TooHeavy(), time.Duration(ends)
	return a
}

// Renew restarts owner's lease with ttl. It returns its fence, or ErrLost with the reason.
func (r *Record) Renew(at Clock, owner string, ttl time.Duration) (fence uint64, err error) {
	mine, err := r.Lease(owner)
	if err != nil {
		return 0, err
	}
	mine.start(at, ttl)
	return driver.FenceOf(mine.Fence), nil
}

// Release gives up owner's lease or place. It returns ErrLost with the reason if there is
// neither.
func (r *Record) Release(owner string) error {
	mine := r.index(owner)
	if mine < 0 {
		return r.lost(owner)
	}
	r.Claims = slices.Delete(r.Claims, mine, mine+1) // clears the freed elements
	return nil
}

// Linger ends owner's lease, and keeps the resource held without an owner for ttl.
func (r *Record) Linger(at Clock, owner string, ttl time.Duration) error {
	mine, err := r.Lease(owner)
	if err != nil {
		return err
	}
	mine.Owner, mine.Status = "", Lingering
	mine.start(at, ttl)
	return nil
}

// Evict ends owner's lease by force, and raises the fence; floor is as for Try. Calls for the
// lease get the reason until it would have ended. An empty owner ends one hold that lingers.
func (r *Record) Evict(owner, reason string, floor uint64) error {
	mine, err := r.Lease(owner)
	if owner == "" {
		mine = r.lingering()
	}
	if mine == nil {
		return err
	}
	mine.Status, mine.Note = Evicted, reason
	r.Fence = r.NextFence(floor)
	r.Claims = slices.DeleteFunc(r.Claims, func(c Claim) bool { return c.Status == Evicted && c.Owner == "" })
	return nil
}

// Holds reports whether owner has a lease.
func (r *Record) Holds(owner string) bool {
	c := r.Find(owner)
	return c != nil && c.Status == Holding
}

// Lease returns owner's lease, or ErrLost with the reason.
func (r *Record) Lease(owner string) (*Claim, error) {
	if c := r.Find(owner); c != nil && c.Status == Holding {
		return c, nil
	}
	return nil, r.lost(owner)
}

// SetNote replaces the note of owner's lease.
func (r *Record) SetNote(owner, note string) error {
	mine, err := r.Lease(owner)
	if err != nil {
		return err
	}
	mine.Note = note
	return nil
}

// RaiseFence makes later fences greater than fence.
func (r *Record) RaiseFence(fence uint64) { r.Raised = max(r.Raised, driver.NumberOf(fence)) }

// Bar leaves a mark for ttl: owner has given up an attempt that may still arrive.
func (r *Record) Bar(at Clock, owner string, ttl time.Duration) {
	c := Claim{Owner: owner, Status: Gone, Since: at.Now()}
	c.start(at, ttl)
	r.Claims = append(r.Claims, c)
}

// KeepOut leaves a mark for ttl at least that owner was given up. All its attempts are refused.
func (r *Record) KeepOut(at Clock, owner string, ttl time.Duration) {
	r.Claims = slices.DeleteFunc(r.Claims, func(c Claim) bool {
		isFormer := c.Bars && c.Owner == owner
		if isFormer {
			ttl = max(ttl, at.Left(&c))
		}
		return isFormer
	})
	r.Bar(at, owner, ttl)
	r.Claims[len(r.Claims)-1].Bars = true
}

// KeepsOut reports whether all attempts of owner are refused; see KeepOut.
func (r *Record) KeepsOut(owner string) bool {
	for i := range r.Claims {
		if c := &r.Claims[i]; c.Bars && c.Owner == owner {
			return true
		}
	}
	return false
}

// DropOver drops claims that are over. Call it before all other methods. A place or a mark with
// more than twice its TTL left was made before the clock was set back. (Twice, because its writer
// may have read the clock long before.)
func (r *Record) DropOver(at Clock) {
	over := func(c *Claim) bool {
		left := at.Left(c)
		return left <= 0 || (c.Status == Waiting || c.Status == Gone) && left > 2*c.TTL
	}
	first := 0
	for first < len(r.Claims) && !over(&r.Claims[first]) {
		first++
	}
	kept := r.Claims[:first] // with a long queue, copying costs most
	for i := first; i < len(r.Claims); i++ {
		if c := &r.Claims[i]; !over(c) {
			kept = append(kept, *c)
		}
	}
	clear(r.Claims[len(kept):])
	r.Claims = kept
}

// Next yields the owners of the waiters that may hold now, in order. They include a waiter that is
// too heavy for a lowered limit, so that it learns of it.
func (r *Record) Next(yield func(owner string) bool) {
	var ahead queue.Ahead
	for i := range r.Claims {
		if c := &r.Claims[i]; c.Status == Holding || c.Status == Lingering {
			ahead.Add(c.Rule())
		}
	}
	Next(ahead, r.Limit, r.waiters, yield)
}

// Next is [Record.Next] for waiters of any source behind others, under an operator's limit.
func Next(ahead queue.Ahead, limit int, waiters iter.Seq[*Claim], yield func(owner string) bool) {
	for c := range waiters {
		one := c.Rule()
		decided := one
		decided.Limit = queue.Smaller(one.Limit, limit)
		switch {
		case decided.TooHeavy():
			if !yield(c.Owner) {
				return
			}
			continue
		case !ahead.Admits(decided) || !yield(c.Owner):
			return
		}
		ahead.Add(one)
	}
}

// waiters yields the places in the record, in order.
func (r *Record) waiters(yield func(*Claim) bool) {
	for i := range r.Claims {
		if c := &r.Claims[i]; c.Status == Waiting && !yield(c) {
			return
		}
	}
}

// Awaited reports whether anyone but owner waits for the resource. An empty owner excludes nobody.
func (r *Record) Awaited(owner string) bool {
	for c := range r.waiters {
		if c.Owner != owner {
			return true
		}
	}
	return false
}

// index returns the index of owner's place or lease, or -1.
func (r *Record) index(owner string) int {
	for i := range r.Claims {
		if c := &r.Claims[i]; c.Owner == owner && c.Status <= Holding {
			return i
		}
	}
	return -1
}

// Find returns owner's place or lease, or nil.
func (r *Record) Find(owner string) *Claim {
	if i := r.index(owner); i >= 0 {
		return &r.Claims[i]
	}
	return nil
}

// lingering returns the first hold without an owner, or nil.
func (r *Record) lingering() *Claim {
	i := slices.IndexFunc(r.Claims, func(c Claim) bool { return c.Status == Lingering })
	if i < 0 {
		return nil
	}
	return &r.Claims[i]
}

// lost returns why owner has neither a lease nor a place, as far as the record shows.
func (r *Record) lost(owner string) error {
	for _, c := range r.Claims {
		if c.Status == Evicted && c.Owner == owner {
			return driver.Evicted(c.Note)
		}
	}
	return fmt.Errorf("%w: expired or released", driver.ErrLost)
}
