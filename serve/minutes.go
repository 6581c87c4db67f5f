package serve

import (
	"math"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
)

const (
	// step is the step of a series, and steps is how many there are.
	step, steps = time.Minute, 120
	// waitsFor is how far back the figures of waits go.
	waitsFor = 10 * time.Minute
	// scales is how many lengths of waits are distinguished, of which perOctave are between one
	// length and its double.
	scales, perOctave = 128, 4
)

// A minute is one step of a series.
type minute struct {
	number        int64 // -1: none
	grants        int
	lost, evicted int
	held, waiting int // when last looked at
	seen          bool
	blind         bool           // the instance did not see it all, and may not have been running
	waits         [scales]uint32 // grants by how long they waited; see scaleOf
}

// minutes are the most recent minutes, of all names together.
type minutes struct {
	began time.Time     // the start of number 0, before any entry
	from  time.Time     // when counting began
	all   [steps]minute // by number modulo steps
	last  [60]second    // by number modulo 60
}

// A second counts the grants of one second since minutes.began.
type second struct {
	number int64
	grants int
}

func (m *minutes) init(now time.Time) {
	m.began, m.from = now.Add(-steps*step), now
	for i := range m.all {
		m.all[i].number = -1
	}
}

// at returns the minute of an instant; nil: it is too old, or before the first.
func (m *minutes) at(t time.Time) *minute {
	number := int64(t.Sub(m.began) / step)
	if t.Before(m.began) {
		return nil
	}
	one := &m.all[number%steps]
	switch {
	case one.number > number:
		return nil
	case one.number < number:
		*one = minute{number: number}
	}
	return one
}

// count adds an entry. It ignores entries from the future, which a wrong clock has written.
func (m *minutes) count(e *HistoryEntry) {
	if time.Until(e.Time) > 0 {
		return
	}
	if e.Kind == wire.Gap {
		m.skips(e.From, e.To)
	}
	if e.Kind == wire.EventGranted && !e.Time.Before(m.began) {
		number := int64(e.Time.Sub(m.began) / time.Second)
		one := &m.last[number%int64(len(m.last))]
		if one.number < number {
			*one = second{number: number}
		}
		if one.number == number {
			one.grants++
		}
	}
	if one := m.at(e.Time); one != nil {
		one.count(e)
	}
}

// skips records a gap.
func (m *minutes) skips(from, to time.Time) {
	for t := to.Add(-step); !t.Before(from) && !t.Before(m.began); t = t.Add(-step) {
		if one := m.at(t.Add(-t.Sub(m.began) % step)); one != nil && !m.began.Add(time.Duration(one.number)*step).Before(from) {
			one.blind = true
		}
	}
}

// lately returns how many grants there were in the last minute.
func (m *minutes) lately(now time.Time) (grants int) {
	oldest := int64(now.Sub(m.began)/time.Second) - int64(len(m.last))
	for _, one := range m.last {
		if one.number > oldest {
			grants += one.grants
		}
	}
	return grants
}

// waitsOf adds up how long the grants of those minutes had waited.
func waitsOf(all []minute) (waits [scales]uint32) {
	for i := range all {
		for scale, n := range all[i].waits {
			waits[scale] += n
		}
	}
	return waits
}

// troublesOf adds up how many leases were lost and evicted in those minutes.
func troublesOf(all []minute) (lost, evicted int) {
	for i := range all {
		lost, evicted = lost+all[i].lost, evicted+all[i].evicted
	}
	return lost, evicted
}

func (one *minute) count(e *HistoryEntry) {
	switch e.Kind {
	case wire.EventGranted:
		one.grants++
		if e.Waited != nil {
			one.waits[scaleOf(*e.Waited)]++
		}
	case wire.Expired:
		one.lost += number(e.isLoss())
	case wire.EventEvicted:
		one.evicted++
	}
}

// isLoss applies to a lease that expired.
func (e *HistoryEntry) isLoss() bool {
	_, d := wire.Said(e.Note)
	return wire.IsLoss(d, e.Held, e.Silent)
}

// isTrouble reports whether a lease ended in a way that operators want to know of.
func (e *HistoryEntry) isTrouble() bool {
	switch e.Kind {
	case wire.EventEvicted:
		return true
	case wire.Expired:
		return e.isLoss()
	}
	return e.Kind == wire.EventEnded && e.Silent != nil
}

// saw records the totals of a look.
func (m *minutes) saw(t time.Time, s *sight) {
	if one := m.at(t); one != nil {
		one.seen, one.held, one.waiting = true, s.held, len(s.rows)-s.held
	}
}

// scaleOf returns the index of a wait in minute.waits.
func scaleOf(ms int64) int {
	if ms <= 0 {
		return 0
	}
	return min(1+int(perOctave*math.Log2(float64(ms))), scales-1)
}

// quantile returns the approximate wait that this part of the grants did not exceed; nil: there
// were none.
func quantile(waits *[scales]uint32, part float64) *int64 {
	all := uint64(0)
	for _, n := range waits {
		all += uint64(n)
	}
	if all == 0 {
		return nil
	}
	rank, seen := uint64(math.Ceil(part*float64(all))), uint64(0)
	for i, n := range waits {
		if seen += uint64(n); seen >= rank {
			ms := int64(0)
			if i > 0 {
				ms = int64(math.Round(math.Exp2((float64(i) - 0.5) / perOctave)))
			}
			return &ms
		}
	}
	return nil
}

// point converts a minute to a point of a series.
func (one *minute) point(ago time.Duration) wire.Point {
	p := wire.Point{Ago: wire.Millis(ago), Grants: one.grants, Lost: one.lost, P50: quantile(&one.waits, 0.5), P99: quantile(&one.waits, 0.99)}
	if one.seen {
		p.Held, p.Waiting = new(one.held), new(one.waiting)
	}
	return p
}

// of returns the minutes up to now, newest first. Number -1: nothing is known of that minute.
func (m *minutes) of(now time.Time) (all []minute) {
	last := int64(now.Sub(m.began) / step)
	first := max(int64(m.from.Sub(m.began)/step), last-steps+1, 0)
	for number := last; number >= first; number-- {
		one := m.all[number%steps]
		if one.number != number {
			one = minute{number: number}
		} else if one.blind && one.grants == 0 && one.lost == 0 && !one.seen {
			one.number = -1
		}
		all = append(all, one)
	}
	return all
}
