package explore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A user is a claim as limits see it.
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

// userOf is a claim, holder or waiter as limits see it.
func userOf(mode driver.Mode, limit, weight int) user {
	return user{mode == driver.Shared, limit, mode.Uses(weight)}
}

// smaller returns the smaller of two limits, where 0 is none.
func smaller(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// tooHeavy reports whether no number of releases makes room for u below an operator's limit.
func (u user) tooHeavy(limit int) bool {
	limit = smaller(u.limit, limit)
	return u.shared && limit > 0 && u.weight > limit
}

// fits reports whether u may hold behind others that hold, or will first. It repeats the rule of the
// engines in few words, because they might all have the same fault.
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
	done  time.Time // zero: it is under way, or may have an effect at any time
}

// settings are all such calls, in order. Requires World.mu.
type settings []*setting

// between returns the limits that may count at an instant between two.
func (all settings) between(from, to time.Time) (limits []int) {
	limits = []int{0}
	for _, s := range all {
		if !s.done.IsZero() && s.done.Before(from) {
			limits = limits[:0]
			for _, o := range all { // of what came before, only that counts whose effect may be late
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

// setLimit sets the limit of the resource as an operator, and again as long as the outcome is not known.
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

// sets notes that the limit may be set from now on.
func (w *World) sets(limit int) *setting {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &setting{limit: limit, begun: time.Now()}
	w.ledger.settings = append(w.ledger.settings, s)
	return s
}

// isSet notes the outcome. What was served twice may be served once more.
func (w *World) isSet(s *setting, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.ledger.untidy {
		return
	}
	s.done = time.Now()
	time.AfterFunc(w.harness.TTL, func() { w.checkTooHeavy(s) })
}

// checkTooHeavy: where nothing happened, nobody waits for a TTL who has become too heavy.
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

// checkRefusedAsHeavy: who is refused as too heavy was so, at some instant of its call. Requires World.mu.
func (w *World) checkRefusedAsHeavy(c *client, u user, called time.Time) {
	if !slices.ContainsFunc(w.ledger.settings.between(called, time.Now()), u.tooHeavy) {
		w.fail("%s is refused as too heavy with a weight of %d, and was never", c.name, u.weight)
	}
}

// checkRoom: those who believe to share fit below the least limit. An operator's counts at a grant, so
// it is that of some instant at which the last of them may have been granted. Requires World.mu.
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
	if w.ledger.disturbed && fits(0) { // the engine may have forgotten what was set
		return
	}
	w.fail("%d believe to share, who use %d of %d", len(all), used, w.allowed(least, all))
}

// allowed is the most that may have counted, for people.
func (w *World) allowed(least int, all []*lease) int {
	first := slices.MinFunc(all, func(a, b *lease) int { return a.called.Compare(b.called) })
	most := 0
	for _, set := range w.ledger.settings.between(first.called, time.Now()) {
		most = max(most, cmp.Or(smaller(least, set), least))
	}
	return most
}

// limited notes that an engine has set a limit.
func (w *World) limited(at place, limit int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.engineOf(at, false).limit = limit
	}
}

// checkRoomAt: there is room for a new holder beside the others and those ahead of it. Requires World.mu.
func (w *World) checkRoomAt(before, now driver.State, i int, ahead []user) {
	h, limit := now.Holders[i], now.Limit
	for j, o := range now.Holders {
		if j != i {
			ahead = append(ahead, userOf(o.Mode, o.Limit, o.Weight))
		}
	}
	if limit != 0 { // it may have been set right after the grant
		limit = max(limit, before.Limit)
		if before.Limit == 0 {
			limit = 0
		}
	}
	if me := userOf(h.Mode, h.Limit, h.Weight); !me.fits(ahead, limit) {
		w.fail("%s is granted with a weight of %d beside %v, where the limit is %d", h.Owner.String(), h.Weight, ahead, limit)
	}
}

// weighing is a share of that weight, of four in all.
func weighing(weight int) wish { return wish{limit: 4, weight: weight} }
