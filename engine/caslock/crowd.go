package caslock

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/onecall"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// A crowd is the waiters of one process whose places are beside records, in a store that is a
// Queuer; see the package's comment. Heartbeats keep places, never leases.
type crowd struct {
	d       *Driver
	store   Queuer
	process string

	signing onecall.Gate // for heartbeats
	signed  time.Time    // guarded by signing; when the last heartbeat was written
	beat    Version      // guarded by signing; version of the last heartbeat
	beatIn  uint64       // guarded by signing; watch session that reports it; 0: maybe none

	mu      sync.Mutex
	heardOf uint64              // guarded by mu; number of our last heartbeat that the watch has reported
	peers   map[string]*peer    // guarded by mu; by process
	mine    map[string]*waiter  // guarded by mu; by name of the place
	pending map[string]int64    // guarded by mu; places to remove, and the tick until which they may still appear
	lines   map[*resource]int64 // guarded by mu; resources with a line, and the tick of the last waiter
	ticks   int64               // guarded by mu; ticks of beats, which stop when this process does
	beating bool                // guarded by mu
}

// A waiter is one of this process.
type waiter struct {
	tried  int64 // tick of its last call
	trying int   // calls in flight
}

const (
	// placeLife is how long the store keeps a place: a longer wait queues again.
	placeLife = 7 * 24 * time.Hour
	// goneLife is how long the mark of a removed place is kept, which refuses late writes of it.
	goneLife = time.Minute
	// beatLives is for how many Places the store keeps the heartbeat of a dead process. After
	// that its places do not delay newcomers.
	beatLives = 3
)

func newCrowd(d *Driver, store Queuer) *crowd {
	return &crowd{
		d: d, store: store, process: newNonce(), signing: onecall.New(),
		peers: make(map[string]*peer), mine: make(map[string]*waiter), pending: make(map[string]int64), lines: make(map[*resource]int64),
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

// begin records that a waiter begins a call; end must follow.
func (q *crowd) begin(s *resource, name string) {
	q.d.watch.going() // the watch is in use
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, name)
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
	q.startBeats()
}

// startBeats starts the heartbeats unless they run. Requires q.mu.
func (q *crowd) startBeats() {
	if !q.beating {
		q.beating = q.d.life.Go(q.beats)
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

// forget records that nobody waits for a place any more.
func (q *crowd) forget(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mine, name)
}

// beats writes the heartbeats of this process, and removes its places without a waiter. While the
// watch does not hear, no waiter of this process can be granted. So after a while it writes none, and
// others pass.
func (q *crowd) beats() {
	every := q.d.opts.Place / keepShare
	for deaf := 0; pause.For(q.d.life, every) == nil; deaf++ {
		q.mu.Lock()
		q.ticks++
		ticks := q.ticks
		q.mu.Unlock()
		if q.d.watch.session() > 0 {
			deaf = 0
		}
		if ticks%2 == 0 && deaf <= keepShare {
			q.checkWatch()
			ctx, cancel := context.WithTimeout(q.d.life, q.d.opts.Place)
			_ = q.sign(ctx, 0) // the next heartbeat is soon
			cancel()
		}
		q.see(ticks, every)
		if q.stopIfIdle() {
			return
		}
	}
}

// checkWatch restarts the watch if it has not reported the last heartbeat when the next one is
// due.
func (q *crowd) checkWatch() {
	q.signing <- struct{}{}
	last, in := q.d.number(q.beat), q.beatIn
	q.signing.End()
	q.mu.Lock()
	deaf := q.heardOf < last
	q.mu.Unlock()
	if session := q.d.watch.session(); session > 0 && session == in && deaf {
		q.d.watch.again()
	}
}

// stopIfIdle ends the heartbeats of a process without waiters.
func (q *crowd) stopIfIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.beating = len(q.mine)+len(q.lines)+len(q.pending) > 0
	return !q.beating
}

// sign writes a heartbeat, unless one was written within fresh.
func (q *crowd) sign(ctx context.Context, fresh time.Duration) error {
	if err := q.signing.Begin(ctx); err != nil {
		return err
	}
	defer q.signing.End()
	if time.Since(q.signed) < fresh {
		return nil
	}
	session := q.d.watch.session()
	version, _, err := q.set(ctx, parted+q.process, []byte(strconv.FormatInt(time.Now().Unix(), 10)), q.beat, beatLives*q.d.opts.Place, true)
	if err == nil {
		q.beat, q.beatIn, q.signed = version, session, time.Now()
	}
	return err
}

// mark sets in a record that will be written whether there are places beside it, as far as this
// process knows.
func (q *crowd) mark(s *resource, v *view) {
	number := q.d.number(v.version)
	if v.looked != nil {
		v.looked.mark(v, number)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := q.d.lineOf(s); l != nil {
		l.mark(v, number)
	}
}
