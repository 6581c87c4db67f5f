package demo

import (
	"context"
	"time"
)

// Outcomes of an actor's attempt, sent as the Number of its message.
const soldOut, sold, gaveUp = 0, 1, 2

// An audience collects the outcomes of many actors that try something at once.
type audience struct {
	away    int         // actors that have neither read nor finished, see [worker.meet]
	numbers map[int]int // number of actors by outcome
	all     []time.Duration
	took    time.Duration // time from the beginning to the last outcome
}

func newAudience(n int) *audience { return &audience{away: n, numbers: make(map[int]int)} }

// Messages of actors that wait for each other: each sends looked, and all receive goOn.
const looked, goOn = "looked", "go on"

// audience lets processes play n actors, called what, and collects their outcomes.
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

// gather lets the waiting actors continue when none is away any more.
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

// hear records one actor's outcome.
func (a *audience) hear(r *run, m message) {
	a.numbers[m.Number]++
	a.all = append(a.all, m.Wait)
	a.took = time.Since(r.opened)
}

func (a *audience) waits() waits { return newWaits(a.all, a.took) }
