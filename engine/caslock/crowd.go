package caslock

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/pause"
	"github.com/leasehold-go/leasehold/internal/record"
)

// A crowd is the waiters of one process whose places are beside records, in a store that is a Queuer. Each process
// writes a beat for all of them, and hears those of others by its watch: a process is dead to this one, and its places
// are passed, when silentFor beats of our own came over the watch since its last one. So nobody's clock matters, nor how
// long a process or the store stood still. Beats keep places, and never leases.
type crowd struct {
	d       *Driver
	store   Queuer
	process string

	signing chan struct{} // has an element while a beat is written
	signed  time.Time     // of the one who signs; when the last beat was written
	beat    Version       // of the one who signs; of the last beat
	beatIn  uint64        // of the one who signs; session that tells of it; 0: perhaps none

	mu      sync.Mutex
	heardOf uint64              // guarded by mu; number of the last beat of ours that the watch has told of
	peers   map[string]*peer    // guarded by mu; by process
	mine    map[string]*waiter  // guarded by mu; by name of the place
	owed    map[string]int64    // guarded by mu; places that may be there though they were left, and the tick until which they may come
	lines   map[*resource]int64 // guarded by mu; those that have a line, and when somebody waited there last, in ticks
	ticks   int64               // guarded by mu; of beating, which stand still when this process does
	beating bool                // guarded by mu
	running sync.WaitGroup
}

// A waiter is one of this process.
type waiter struct {
	tried  int64 // tick of its last sign
	trying int   // calls that are under way
}

const (
	// placeLife is how long a place may be needed: who waits for longer queues anew.
	placeLife = 7 * 24 * time.Hour
	// goneLife is how long the mark of a place that was removed is needed, which refuses late writes of it.
	goneLife = time.Minute
	// beatLives is for how many Places the beat of a process that died stays. From then on its places are in nobody's way
	// who has just come.
	beatLives = 3
)

func newCrowd(d *Driver, store Queuer) *crowd {
	return &crowd{
		d: d, store: store, process: newNonce(), signing: make(chan struct{}, 1),
		peers: make(map[string]*peer), mine: make(map[string]*waiter), owed: make(map[string]int64), lines: make(map[*resource]int64),
	}
}

func (q *crowd) peerOf(process string) *peer {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.peers[process]
	if p == nil {
		p = &peer{}
		q.peers[process] = p
	}
	return p
}

// begin notes that a waiter makes a call; end follows.
func (q *crowd) begin(s *resource, name string) {
	q.d.watch.going() // it is not idle
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.owed, name)
	w := q.mine[name]
	if w == nil {
		w = &waiter{}
		q.mine[name] = w
	}
	w.tried = q.ticks
	w.trying++
	if _, ok := q.lines[s]; ok {
		q.lines[s] = q.ticks
	}
	q.begins()
}

// begins begins the beats, unless they go on. Requires q.mu.
func (q *crowd) begins() {
	if !q.beating && q.d.closing.Err() == nil {
		q.beating = true
		q.running.Go(q.beats)
	}
}

func (q *crowd) end(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.mine[name]; w != nil {
		w.trying--
		w.tried = q.ticks
	}
}

// forget notes that nobody waits for a place any more.
func (q *crowd) forget(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mine, name)
}

// beats keeps the places of this process, and sees to those that nobody waits for.
func (q *crowd) beats() {
	every := q.d.opts.Place / keepShare
	for {
		if pause.For(q.d.closing, every) != nil {
			return
		}
		q.mu.Lock()
		q.ticks++
		ticks := q.ticks
		q.mu.Unlock()
		if ticks%2 == 0 {
			q.listens()
			ctx, cancel := context.WithTimeout(q.d.closing, q.d.opts.Place)
			_ = q.sign(ctx, 0) // the next one is soon
			cancel()
		}
		q.see(ticks, every)
		if q.rest() {
			return
		}
	}
}

// listens has the watch begin anew if it has not told of the last beat until the next one is due.
func (q *crowd) listens() {
	q.signing <- struct{}{}
	last, in := q.d.number(q.beat), q.beatIn
	<-q.signing
	session, err := q.d.watch.session()
	q.mu.Lock()
	deaf := q.heardOf < last
	q.mu.Unlock()
	if err == nil && session == in && deaf {
		q.d.watch.again()
	}
}

// rest ends the beats of a process where nobody has waited for a while.
func (q *crowd) rest() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.beating = len(q.mine)+len(q.lines)+len(q.owed) > 0
	return !q.beating
}

// sign writes a beat, unless one was written within the time of fresh.
func (q *crowd) sign(ctx context.Context, fresh time.Duration) error {
	select {
	case q.signing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-q.signing }()
	if !q.signed.IsZero() && time.Since(q.signed) < fresh {
		return nil
	}
	session, _ := q.d.watch.session() // 0 where there is none
	version, err := q.set(ctx, parted+q.process, []byte(strconv.FormatInt(time.Now().Unix(), 10)), q.beat, beatLives*q.d.opts.Place, true)
	if err == nil {
		q.beat, q.beatIn, q.signed = version, session, time.Now()
	}
	return err
}

// mark says in a record that is to be written whether others wait beside it, as far as this process knows.
func (q *crowd) mark(s *resource, v *view) {
	number := q.d.number(v.version)
	if v.looked != nil {
		v.looked.mark(v, number)
		return
	}
	session, err := q.d.watch.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.line.hears(session) {
		s.line.mark(v, number)
	}
}

// stands returns the refusal of a waiter whose place is behind others that are in its way, which this process knows
// without asking the store; nil: the store is to be asked.
func (q *crowd) stands(s *resource, req *driver.Request, wake <-chan struct{}) *driver.Busy {
	session, err := q.d.watch.session()
	if err != nil {
		return nil
	}
	id := idOf(req.Owner)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.line
	if !l.hears(session) {
		return nil
	}
	if p := l.byID[id]; p == nil || p.peer.dead() || l.isNext(id, nil) {
		return nil
	}
	v := s.view()
	busy := &driver.Busy{Wake: wake, Retry: q.d.opts.Place / 2}
	for i := range v.Claims {
		c := &v.Claims[i]
		if c.Owner == req.Owner {
			return nil // it holds, or is kept out
		}
		if busy.Holder == (driver.Holder{}) && (c.Status == record.Holding || c.Status == record.Lingering) {
			busy.Holder = shown(c.Holder(&v.clock))
		}
	}
	return busy
}
