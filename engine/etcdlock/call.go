package etcdlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/lanes"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/pause"
)

const (
	// hangAfter is how long a member may take to answer before a call that can be repeated is sent
	// again, to another member. It doubles each time.
	hangAfter = time.Second
	// deletedAfter is the same for a deletion. A deletion that was served and is sent again finds
	// nothing, so its outcome is unknown. The wait is at most half of the call's time, to leave the
	// rest for another member.
	deletedAfter = 2500 * time.Millisecond
	// electing is the first pause before a call that failed during an election is repeated. It
	// doubles.
	electing = 100 * time.Millisecond
)

// deletionWait returns how long the first attempt of a deletion may hang, for a caller who needs to
// know its outcome.
func deletionWait(ctx context.Context) time.Duration {
	wait := deletedAfter
	if end, bounded := ctx.Deadline(); bounded { // the release of a short lease has little time
		wait = min(wait, time.Until(end)/2)
	}
	return wait
}

// A cluster is the destination of calls, with what their answers have said about it.
type cluster struct {
	client *clientv3.Client
	links  *links.Links // the connections of the driver's own client; nil: the client is the caller's
	lanes  *lanes.Lanes // of waiters
	seen   atomic.Int64 // the largest revision in an answer
	latest atomic.Int64 // the largest since the revision went back
}

// undated is a context that hides its deadline. Otherwise the client would send the remaining time
// to the server, which sets a timer for each call.
type undated struct{ context.Context }

func (undated) Deadline() (end time.Time, ok bool) { return end, false }

// commit sends one transaction. Reads are sent as transactions too, because the client repeats
// other reads by itself.
func (d *Driver) commit(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	latest := d.latest.Load()
	answer, err := d.client.Do(undated{clientv3.WithRequireLeader(ctx)}, clientv3.OpTxn(cmps, then, otherwise))
	if err != nil {
		err = d.explain(ctx, err)
		d.lanes.Answered(err)
		return nil, err
	}
	d.lanes.Answered(nil)
	resp := answer.Txn()
	rev := resp.Header.Revision
	if rev < latest && d.latest.CompareAndSwap(latest, rev) { // only the first such answer restarts the watches
		d.rewatch() // they wait for revisions that the server no longer has
	}
	raise(&d.latest, rev)
	raise(&d.seen, rev)
	return resp, nil
}

// raise sets n to rev if rev is greater.
func raise(n *atomic.Int64, rev int64) {
	for was := n.Load(); was < rev && !n.CompareAndSwap(was, rev); was = n.Load() {
	}
}

// commitAgain is commit for a transaction that does no harm when it is served twice.
func (d *Driver) commitAgain(ctx context.Context, cmps []clientv3.Cmp, then ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = d.repeating(ctx, hangAfter, func(ctx context.Context) (err error) {
		resp, err = d.commit(ctx, cmps, then, nil)
		return err
	})
	return resp, err
}

// read is a linearizable read.
func (d *Driver) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return d.commitAgain(ctx, nil, ops...)
}

// repeating repeats a call while ctx lives if the call hangs, or fails as it does without a leader
// or when a connection ends. An election takes a second or two. The first call may hang for wait.
func (d *Driver) repeating(ctx context.Context, wait time.Duration, call func(ctx context.Context) error) error {
	end, bounded := ctx.Deadline()
	for rest := electing; ; {
		limited, cancel := context.WithTimeout(ctx, wait)
		sent := time.Now()
		err := call(limited)
		hung := errors.Is(limited.Err(), context.DeadlineExceeded)
		cancel()
		if err == nil {
			d.links.Answered(sent)
		} else if hung {
			d.links.Hung(sent)
		}
		switch {
		case err == nil, ctx.Err() != nil, d.isClosed():
			return err
		case hung:
			if why := d.unconnected(); why != nil {
				return Explain(why)
			}
			wait *= 2
		case !passes(err), bounded && time.Until(end) <= rest:
			return err
		default:
			_ = pause.For(ctx, rest) // if ctx ends, the next call reports it
			rest *= 2
		}
	}
}
