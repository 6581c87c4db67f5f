package sqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A crowd keeps the waiters of a Driver from taking each other for a database that is out of reach. At most laneWidth of
// them ask at once for one name, as they wait for its row anyway, so that they do not take all connections that the
// server has. A call that had no answer while the database answered others was late because of those others.
type crowd struct {
	lanes   [64]chan struct{} // by the hash of the name; each has a token for every waiter that asks
	answers atomic.Uint64     // of the database, to any call
	asking  atomic.Bool       // a probe is under way
}

// laneWidth is how many waiters of a name ask at once. Four keep a row busy: with more of them, PostgreSQL spends its
// time on waking those that find the row locked again.
const laneWidth = 4

var laneSeed = maphash.MakeSeed()

func (w *crowd) init() {
	for i := range w.lanes {
		w.lanes[i] = make(chan struct{}, laneWidth)
	}
}

// enter returns when it is the turn of a waiter of name to ask; leave follows.
func (w *crowd) enter(ctx context.Context, name string) (leave func(), err error) {
	lane := w.lanes[maphash.String(laneSeed, name)%uint64(len(w.lanes))]
	select {
	case lane <- struct{}{}:
		return func() { <-lane }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// crowded has a call of a waiter tell a crowd, by [driver.ErrNotYet], from a database that is out of reach.
func (d *Driver) crowded(ctx context.Context, name string, call func() error) error {
	before := d.crowd.answers.Load()
	leave, err := d.crowd.enter(ctx, name)
	if err == nil {
		defer leave()
		if end, bounded := ctx.Deadline(); bounded {
			defer time.AfterFunc(time.Until(end)/2, func() { d.probe(ctx) }).Stop()
		}
		err = call()
	}
	if unanswered(err) && d.crowd.answers.Load() != before {
		return fmt.Errorf("%w: others keep the database: %w", driver.ErrNotYet, err)
	}
	return err
}

// probe asks the database for an answer, on a connection of its own: a row that somebody has locked says nothing.
func (d *Driver) probe(ctx context.Context) {
	if !d.crowd.asking.CompareAndSwap(false, true) {
		return
	}
	defer d.crowd.asking.Store(false)
	if d.db.PingContext(ctx) == nil {
		d.crowd.answers.Add(1)
	}
}

// answered notes what a statement came to.
func (w *crowd) answered(err error) {
	if !unanswered(err) {
		w.answers.Add(1)
	}
}

// unanswered reports whether err is not the database's.
func unanswered(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, sqldriver.ErrBadConn)
}
