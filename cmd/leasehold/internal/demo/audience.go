package demo

import (
	"context"
	"time"
)

// Outcomes of what an actor wanted, as the numbers of its message.
const soldOut, sold, gaveUp = 0, 1, 2

// An audience is what became of many actors who wanted something at once.
type audience struct {
	away    int         // how many have neither looked nor are done, see [worker.meet]
	numbers map[int]int // how many had each outcome
	all     []time.Duration
	took    time.Duration // from the opening to the last answer
}

func newAudience(n int) *audience { return &audience{away: n, numbers: make(map[int]int)} }

// Messages of actors who wait for each other: one says that it waits, and all get the go-ahead.
const looked, goOn = "looked", "go on"

// audience lets processes play n actors, called what, and collects the outcome of each.
func (r *run) audience(ctx context.Context, processes, n int, what string) (*audience, error) {
	a := newAudience(n)
	return a, r.perform(ctx, processes, func(_ *process, m message) error {
		a.gather(r, m)
		if m.What == done {
			a.hear(r, m)
			r.progress("%d of %d %s served", len(a.all), n, what)
		}
		return nil
	})
}

// gather lets those who wait for each other go on when nobody is away any more.
func (a *audience) gather(r *run, m message) {
	if m.What != looked && m.What != done {
		return
	}
	if a.away--; a.away == 0 {
		for _, p := range r.processes {
			p.tell(goOn)
		}
	}
}

// hear notes one actor's outcome.
func (a *audience) hear(r *run, m message) {
	a.numbers[m.Number]++
	a.all = append(a.all, m.Wait)
	a.took = time.Since(r.opened)
}

func (a *audience) waits() waits { return newWaits(a.all, a.took) }
