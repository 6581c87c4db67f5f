package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
)

// A Belief is an interval in which an owner believed that it held a resource. It lasts from the
// return of Acquire until Release is called, the lease's context ends or its deadline passes.
// All instants of a History are from one machine's clock.
type Belief struct {
	Resource string      `json:"resource"` // that it believed to hold
	Owner    string      `json:"owner"`    // who believed
	Mode     driver.Mode `json:"mode"`     // exclusive or shared
	Limit    int         `json:"limit"`    // as requested; 0: none
	Weight   int         `json:"weight"`   // of a shared one; see driver.Mode.Uses
	Token    uint64      `json:"token"`    // 0: the engine has none, their order is not checked
	Called   time.Time   `json:"called"`   // when Acquire was, for a shared one; zero: at From
	From     time.Time   `json:"from"`     // the belief began
	Until    time.Time   `json:"until"`    // it ended
}

// A History is a set of beliefs of any number of processes. Its zero value is empty. It is safe
// for concurrent use.
type History struct {
	mu      sync.Mutex
	beliefs []Belief // guarded by mu
}

// Add adds one belief.
func (h *History) Add(b Belief) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beliefs = append(h.beliefs, b)
}

// Len returns how many beliefs were added.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.beliefs)
}

// Believe adds the belief of the holder of lease, an exclusive one acquired just now. Call done
// just before Release.
func (h *History) Believe(lease *leasehold.Lease) (done func()) {
	return h.believe(lease, Belief{Mode: driver.Exclusive})
}

// BelieveShared is Believe for a shared lease with that limit (0: none) and weight, by an Acquire
// that was called at called.
func (h *History) BelieveShared(lease *leasehold.Lease, limit, weight int, called time.Time) (done func()) {
	return h.believe(lease, Belief{Mode: driver.Shared, Limit: limit, Weight: weight, Called: called})
}

func (h *History) believe(lease *leasehold.Lease, b Belief) (done func()) {
	b.Resource, b.Owner, b.Token, b.From = lease.Name(), lease.Owner(), lease.Token(), time.Now()
	ended := make(chan time.Time, 1)
	stop := context.AfterFunc(lease.Context(), func() { ended <- time.Now() })
	return func() {
		b.Until = time.Now()
		if !stop() {
			b.Until = earlier(b.Until, <-ended)
		}
		b.Until = earlier(b.Until, lease.Deadline())
		h.Add(b)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// maxViolations bounds the error of Check: a broken lock is broken thousands of times.
const maxViolations = 10

// Check returns nil if no two beliefs exclude each other and tokens grow. Otherwise it returns
// an error with the first violations of each resource. Violations are exclusive beliefs that
// overlap with any other, and shared ones that together weigh more than the smallest of their
// limits. So is a token that is not above the tokens of all beliefs that had ended before it
// began, or for a shared one before Acquire was called. Beliefs that had ended when they began
// violate nothing.
func (h *History) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	byResource := make(map[string][]Belief)
	var errs []error
	for _, b := range h.beliefs {
		if b.Until.Before(b.From) {
			b.Until = b.From
		}
		byResource[b.Resource] = append(byResource[b.Resource], b)
	}
	for _, beliefs := range byResource {
		slices.SortStableFunc(beliefs, func(a, b Belief) int { return a.From.Compare(b.From) })
		errs = append(errs, overlaps(beliefs)...)
		errs = append(errs, stale(beliefs)...)
	}
	return errors.Join(errs[:min(len(errs), maxViolations)]...)
}

// overlaps sweeps over beliefs, sorted by From, with those that have not ended yet.
func overlaps(beliefs []Belief) (errs []error) {
	var live []Belief
	for _, b := range beliefs {
		if len(errs) >= maxViolations {
			break
		}
		if !b.Until.After(b.From) {
			continue // it ended before Acquire returned, so nobody could act on it
		}
		live = slices.DeleteFunc(live, func(l Belief) bool { return !l.Until.After(b.From) })
		limit, used := b.Limit, b.weight()
		for _, l := range live {
			used += l.weight()
			if l.Mode == driver.Exclusive || b.Mode == driver.Exclusive {
				errs = append(errs, fmt.Errorf("two holders at once for %v: %v and %v",
					earlier(l.Until, b.Until).Sub(b.From), l, b))
			}
			if l.Limit > 0 && (limit == 0 || l.Limit < limit) {
				limit = l.Limit
			}
		}
		live = append(live, b)
		if limit > 0 && used > limit && b.Mode == driver.Shared {
			errs = append(errs, fmt.Errorf("%d holders at once use %d, limit %d: the last is %v", len(live), used, limit, b))
		}
	}
	return errs
}

// stale finds tokens that are not above the tokens of beliefs that had ended before theirs began.
// It does not compare beliefs that overlap, as shared ones may, or whose Acquires overlap. The
// order of their grants is unknown. Nor does it judge one that had ended before Acquire returned: a
// pause after its grant may have lasted beyond later ones.
func stale(beliefs []Belief) (errs []error) {
	beliefs = slices.SortedStableFunc(slices.Values(beliefs), func(a, b Belief) int { return a.called().Compare(b.called()) })
	byEnd := slices.SortedStableFunc(slices.Values(beliefs), func(a, b Belief) int { return a.Until.Compare(b.Until) })
	var highest Belief // among those that had ended
	for _, b := range beliefs {
		for len(byEnd) > 0 && byEnd[0].Until.Before(b.called()) {
			if byEnd[0].Token > highest.Token {
				highest = byEnd[0]
			}
			byEnd = byEnd[1:]
		}
		if b.Token != 0 && b.Token <= highest.Token && b.Until.After(b.From) {
			errs = append(errs, fmt.Errorf("token did not grow: %v came after %v", b, highest))
		}
	}
	return errs
}

// weight returns how much of a limit b uses.
func (b Belief) weight() int { return b.Mode.Uses(b.Weight) }

// called returns the earliest instant at which b may have been granted.
func (b Belief) called() time.Time {
	if b.Called.IsZero() {
		return b.From
	}
	return b.Called
}

// String describes b without its whole owner.
func (b Belief) String() string {
	return fmt.Sprintf("%s %q by %s token %d [%s, %s]", b.Mode, b.Resource, driver.ShortOwner(b.Owner), b.Token,
		b.From.Format("15:04:05.000000"), b.Until.Format("15:04:05.000000"))
}
