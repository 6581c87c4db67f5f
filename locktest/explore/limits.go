package explore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A user is what limits need to know of a claim.
type user struct {
	shared        bool
	limit, weight int
}

func (w wish) user() user {
	mode := driver.Exclusive
	if w.shared || w.limit > 0 || w.weight > 0 {
		mode = driver.Shared
	}
	return userOf(mode, w.limit, w.weight)
}

// userOf returns the user for a claim, holder or waiter.
func userOf(mode driver.Mode, limit, weight int) user {
	return user{mode == driver.Shared, limit, mode.Uses(weight)}
}

// smaller returns the smaller of two limits; 0 is none.
func smaller(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// tooHeavy reports whether no release can make room for u below an operator's limit.
func (u user) tooHeavy(limit int) bool {
	limit = smaller(u.limit, limit)
	return u.shared && limit > 0 && u.weight > limit
}

// fits reports whether u may hold beside others that hold, or that must be granted first. It
// repeats the engines' rule independently, because all engines might have the same fault.
func (u user) fits(ahead []user, limit int) bool {
	used := u.weight
	limit = smaller(u.limit, limit)
	for _, o := range ahead {
		if !o.shared || !u.shared {
			return false
		}
		used += o.weight
		limit = smaller(limit, o.limit)
	}
	return !u.shared || limit == 0 || used <= limit
}

// A setting is one call of an operator that sets the limit.
type setting struct {
	limit int
	begun time.Time
	done  time.Time // zero: it is in progress, or may take effect at any time
}

// settings are all these calls, in order. Requires World.mu.
type settings []*setting

// between returns the limits that may be in effect at some instant from from to to.
func (all settings) between(from, to time.Time) (limits []int) {
	limits = []int{0}
	for _, s := range all {
		if !s.done.IsZero() && s.done.Before(from) {
			limits = limits[:0]
			for _, o := range all { // of earlier settings, only those remain that may take effect late
				if o == s {
					break
				}
				if o.done.IsZero() {
					limits = append(limits, o.limit)
				}
			}
		}
		if !s.begun.After(to) {
			limits = append(limits, s.limit)
		}
	}
	return limits
}

// setLimit sets the limit of the resource as an operator. It repeats the call while the outcome is
// unknown.
func (c *client) setLimit(limit int) {
	for range 3 {
		if !c.ready("SetLimit") {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.world.harness.TTL)
		s := c.world.sets(limit)
		err := c.locker.SetLimit(ctx, resource, limit)
		cancel()
		c.world.tell("%s: SetLimit %d: %v", c.name, limit, err)
		if c.world.isSet(s, err); err == nil {
			return
		}
	}
}

// sets records that the limit may be set from now on.
func (w *World) sets(limit int) *setting {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &setting{limit: limit, begun: time.Now()}
	w.ledger.settings = append(w.ledger.settings, s)
	return s
}

// isSet records the outcome. A request that was served twice may be served again later.
func (w *World) isSet(s *setting, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.ledger.untidy {
		return
	}
	s.done = time.Now()
	time.AfterFunc(w.harness.TTL, func() { w.checkTooHeavy(s) })
}

// checkTooHeavy: without changes, a claim that has become too heavy does not wait for a TTL.
func (w *World) checkTooHeavy(s *setting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.changed.IsZero() || w.ledger.settings[len(w.ledger.settings)-1] != s {
		return
	}
	for _, c := range w.clients {
		if c.asks != nil && c.since.Before(s.done) && c.asks.user().tooHeavy(s.limit) {
			w.fail("%s, of weight %d, waits though the limit has been %d for a TTL", c.name, c.asks.weight, s.limit)
		}
	}
}

// checkRefusedAsHeavy: a claim that was refused as too heavy was so at some instant of its call.
// Requires World.mu.
func (w *World) checkRefusedAsHeavy(c *client, u user, called time.Time) {
	if !slices.ContainsFunc(w.ledger.settings.between(called, time.Now()), u.tooHeavy) {
		w.fail("%s is refused as too heavy with a weight of %d, and was never", c.name, u.weight)
	}
}

// checkRoom: the sharers that believe to hold fit below the smallest limit. An operator's limit
// counts at a grant. So one that was in effect when the last of them may have been granted
// suffices. Requires World.mu.
func (w *World) checkRoom(all []*lease) {
	used, least := 0, 0
	for _, l := range all {
		u := l.wish.user()
		used += u.weight
		least = smaller(least, u.limit)
	}
	fits := func(set int) bool {
		limit := smaller(least, set)
		return limit == 0 || used <= limit
	}
	for _, last := range all {
		isEarlier := slices.ContainsFunc(all, func(o *lease) bool { return o.called.After(last.begun) })
		if !isEarlier && slices.ContainsFunc(w.ledger.settings.between(last.called, last.begun), fits) {
			return
		}
	}
	if w.ledger.disturbed && fits(0) { // the engine may have forgotten the limit
		return
	}
	w.fail("%d believe to share, who use %d of %d", len(all), used, w.allowed(least, all))
}

// allowed returns the highest limit that may have been in effect, for a message.
func (w *World) allowed(least int, all []*lease) int {
	first := slices.MinFunc(all, func(a, b *lease) int { return a.called.Compare(b.called) })
	most := 0
	for _, set := range w.ledger.settings.between(first.called, time.Now()) {
		most = max(most, cmp.Or(smaller(least, set), least))
	}
	return most
}

// limited records that an engine has set a limit.
func (w *World) limited(at place, limit int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.engineOf(at, false).limit = limit
	}
}

// checkRoomAt: the new holder at index i fits beside the others, and beside those ahead of it.
// Requires World.mu.
func (w *World) checkRoomAt(before, now driver.State, i int, ahead []user) {
	h, limit := now.Holders[i], now.Limit
	for j, o := range now.Holders {
		if j != i {
			ahead = append(ahead, userOf(o.Mode, o.Limit, o.Weight))
		}
	}
	if limit != 0 { // it may have been set after the grant
		limit = max(limit, before.Limit)
		if before.Limit == 0 {
			limit = 0
		}
	}
	if me := userOf(h.Mode, h.Limit, h.Weight); !me.fits(ahead, limit) {
		w.fail("%s is granted with a weight of %d beside %v, where the limit is %d", h.Owner.String(), h.Weight, ahead, limit)
	}
}

// weighing returns a wish for a share of this weight, under a limit of 4.
func weighing(weight int) wish { return wish{limit: 4, weight: weight} }
