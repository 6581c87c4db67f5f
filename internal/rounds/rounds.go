// Package rounds lets concurrent changes of one value share a write.
//
// A store that writes a value only if nobody else has written it meanwhile serves one of many
// concurrent changes. All others read again and repeat their work. Within one process that is not
// necessary. While a change of a value is under way, others gather. The next round makes all of them
// by one read and one write. A change that meets no others runs as if there were no rounds.
package rounds

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/waiting"
)

// patience is how long changes wait for the round before theirs. It is far above the answer of a
// healthy database. A round that takes longer may hang with its connection, or wait for a lock of
// a stranger: the next one begins beside it, and the store decides between them.
const patience = 250 * time.Millisecond

// callerShare limits how long a caller waits for the round before its own: this part of its time.
// Most of it is left for the answer.
const callerShare = 4

// Rounds make the changes of many values, which have names. Values do not wait for each other.
type Rounds[C any] struct {
	run Run[C]

	mu    sync.Mutex
	lines map[string]*line[C] // guarded by mu; by name
}

// A Run makes all changes of a round, in order. It may range over them repeatedly: a change is
// missing once its caller has left. The loop's body has the caller wait, so it must not block.
type Run[C any] func(ctx context.Context, name string, all iter.Seq[C]) error

// A line is the rounds of one value.
type line[C any] struct {
	current *round[C] // guarded by Rounds.mu; the last round that has begun
	since   time.Time // guarded by Rounds.mu; when it began
	next    *round[C] // guarded by Rounds.mu; the round that changes may join; nil: none
}

// A round is changes that are made together.
type round[C any] struct {
	changes []*change[C] // guarded by Rounds.mu until the round begins
	waiting int          // guarded by Rounds.mu; how many callers have not left
	by      time.Time    // guarded by Rounds.mu; when the round begins at the latest
	late    *time.Timer  // begins it then
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when the round has ended
	err     error         // set before
}

// A change is one caller's part of a round.
type change[C any] struct {
	mu   sync.Mutex
	left bool // guarded by mu
	c    C    // used while mu is held
}

// New returns Rounds that run makes.
func New[C any](run Run[C]) *Rounds[C] {
	return &Rounds[C]{run: run, lines: make(map[string]*line[C])}
}

// Do makes a change of the named value, and returns the error of its round. If ctx ends first, it
// returns ctx.Err. Then Run does not use c any more, but a write that has c may be under way. The
// round goes on for the other callers. Its context ends when the last of them has left.
func (r *Rounds[C]) Do(ctx context.Context, name string, c C) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l, mine, part := r.join(ctx, name, c)
	if part == nil {
		defer r.ends(name, l, mine)
		return r.run(ctx, name, func(yield func(C) bool) { yield(c) })
	}
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
	}
	if !r.leave(l, mine, part) {
		return mine.err
	}
	return ctx.Err()
}

// join adds c to the next round of the value. If no round is under way, the caller must make the
// change alone and then call ends: the change is nil.
func (r *Rounds[C]) join(ctx context.Context, name string, c C) (*line[C], *round[C], *change[C]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lines[name]
	if l == nil {
		l = &line[C]{current: new(round[C]), since: time.Now()}
		r.lines[name] = l
		return l, l.current, nil
	}
	if l.next == nil {
		// Counted from the round under way: callers that join and leave do not postpone the next.
		next := &round[C]{done: make(chan struct{}), by: l.since.Add(patience)}
		next.ctx, next.cancel = context.WithCancel(context.Background())
		next.late = time.AfterFunc(time.Until(next.by), func() { r.overdue(name, l, next) })
		l.next = next
	}
	if end, bounded := ctx.Deadline(); bounded {
		l.next.beginBy(time.Now().Add(time.Until(end) / callerShare))
	}
	part := &change[C]{c: c}
	l.next.changes = append(l.next.changes, part)
	l.next.waiting++
	return l, l.next, part
}

// beginBy makes the round begin at t at the latest. Requires Rounds.mu.
func (r *round[C]) beginBy(t time.Time) {
	if t.Before(r.by) {
		r.by = t
		r.late.Reset(time.Until(t))
	}
}

// leave removes a change from its round, unless the round has ended.
func (r *Rounds[C]) leave(l *line[C], from *round[C], part *change[C]) (left bool) {
	if !part.leave(from) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if from.waiting--; from.waiting > 0 {
		return true
	}
	from.cancel()
	if l.next == from { // it has not begun
		from.late.Stop()
		l.next = nil
	}
	return true
}

// leave marks the change as left, unless its round has ended. A round that ends later may have been
// made without it, so its outcome says nothing about the change.
func (p *change[C]) leave(from *round[C]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = !waiting.Closed(from.done)
	return p.left
}

// begin runs the next round. Requires r.mu.
func (r *Rounds[C]) begin(name string, l *line[C]) {
	now := l.next
	l.current, l.since, l.next = now, time.Now(), nil
	now.late.Stop()
	go func() {
		defer r.ends(name, l, now)
		defer now.cancel()
		now.err = r.run(now.ctx, name, now.all)
		close(now.done)
	}()
}

// all yields the changes whose callers have not left. A caller that leaves meanwhile waits until
// its change was used.
func (r *round[C]) all(yield func(C) bool) {
	for _, part := range r.changes {
		if !part.yield(yield) {
			return
		}
	}
}

func (p *change[C]) yield(yield func(C) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left || yield(p.c)
}

// overdue begins a round that has waited too long, unless it has begun.
func (r *Rounds[C]) overdue(name string, l *line[C], next *round[C]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.next == next {
		r.begin(name, l)
	}
}

// ends records the end of a round. The next one begins, unless it has begun beside it.
func (r *Rounds[C]) ends(name string, l *line[C], ended *round[C]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case l.current != ended:
	case l.next != nil:
		r.begin(name, l)
	default:
		delete(r.lines, name)
	}
}
