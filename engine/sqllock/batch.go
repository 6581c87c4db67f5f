package sqllock

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// fewAlone is how many requests of a kind are in flight alone before others share a
	// statement.
	fewAlone = 8
	// batchPause bounds how long a batch waits for one of them, so that one that hangs delays
	// the others no longer.
	batchPause = 10 * time.Millisecond
	// batchWithin bounds the statement of a batch. Its callers usually give up earlier.
	batchWithin = 5 * time.Second
	maxBatch    = 200
	// maxNames is the most names that a driver remembers for a reason.
	maxNames = 10000
)

// A request is one call's part of a batch, as JSON.
type request struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	TTL   int64  `json:"ttl"` // in microseconds
	Note  string `json:"note,omitempty"`
	Fence int64  `json:"fence,omitempty"` // number of the grant that ends
	Asks  asks   `json:"asks,omitempty"`  // whether its claim wants to know that others wait
}

// A batcher sends requests of one kind: each by a statement of its own while few are in flight,
// otherwise many by one statement, which is one commit. Such a statement skips rows that are
// missing, taken, waited for or locked by others. Requests that were skipped are sent alone.
type batcher struct {
	send func(ctx context.Context, all []request) (fences map[grantee]int64, err error)

	mu    sync.Mutex
	alone int    // guarded by mu; requests in flight alone
	sent  int    // guarded by mu; batches in flight
	last  int    // guarded by mu; requests in the last batch
	next  *batch // guarded by mu; the batch that requests may join; nil: none
}

// A batch is requests that are sent together. No two are for one name.
type batch struct {
	requests  []request
	names     map[string]bool
	late      *time.Timer       // sends the batch when it is overdue
	delivered chan struct{}     // closed when the batch is answered
	fences    map[grantee]int64 // set before
	err       error             // set before
}

// ask sends a request in a batch. If alone is true, the caller must send the request itself, and
// then call answered.
func (b *batcher) ask(ctx context.Context, r request) (fence int64, alone bool, err error) {
	batch := b.join(r)
	if batch == nil {
		return 0, true, nil
	}
	select {
	case <-batch.delivered:
	case <-ctx.Done():
		return 0, false, ctx.Err()
	}
	switch fence := batch.fences[grantee{r.Name, r.Owner}]; {
	case errors.Is(batch.err, ErrContended): // nothing was done
	case batch.err != nil:
		return 0, false, batch.err
	case fence == untold:
		return 0, false, errMaybeReleased
	case fence > 0:
		return fence, false, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alone++
	return 0, true, nil
}

// answered records the answer to a request that was sent alone.
func (b *batcher) answered() { b.ends(&b.alone) }

// join adds r to the next batch, or returns nil if it must be sent alone.
func (b *batcher) join(r request) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.next
	switch {
	case next == nil && b.sent == 0 && b.alone < b.few(), next != nil && next.names[r.Name]:
		b.alone++
		return nil
	case next == nil:
		next = &batch{names: make(map[string]bool), delivered: make(chan struct{})}
		next.late = time.AfterFunc(batchPause, func() { b.overdue(next) })
		b.next = next
	}
	next.names[r.Name], next.requests = true, append(next.requests, r)
	if len(next.requests) == maxBatch {
		b.depart()
	}
	return next
}

// few returns how many requests are sent alone. After a large batch, all its callers come again.
// If eight of them went alone, a pool with fewer idle connections would open and close some with
// each batch. Requires mu.
func (b *batcher) few() int {
	if b.last > fewAlone {
		return 1
	}
	return fewAlone
}

// depart sends the next batch in a goroutine. Requires mu.
func (b *batcher) depart() {
	next := b.next
	b.next, b.last = nil, len(next.requests)
	b.sent++
	next.late.Stop()
	go func() {
		defer b.ends(&b.sent)
		ctx, cancel := context.WithTimeout(context.Background(), batchWithin)
		defer cancel()
		next.fences, next.err = b.send(ctx, next.requests)
		close(next.delivered)
	}()
}

// overdue sends a batch that has waited too long, unless it was sent.
func (b *batcher) overdue(next *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == next {
		b.depart()
	}
}

// ends records that a statement was answered, one of *many. The next batch is sent when none is
// in flight.
func (b *batcher) ends(many *int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*many--
	if b.next != nil && b.sent == 0 {
		b.depart()
	}
}

// batches are the batchers of one driver.
type batches struct {
	grants, gives batcher
	free          names // with rows that the driver has left free
}

// names are what a driver remembers of some names: a hint, which may be wrong or forgotten.
type names struct {
	mu  sync.Mutex
	all map[string]struct{} // guarded by mu
}

// note records whether name is one of them.
func (n *names) note(name string, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !is:
		delete(n.all, name)
	case n.all == nil || len(n.all) == maxNames:
		n.all = map[string]struct{}{name: {}}
	default:
		n.all[name] = struct{}{}
	}
}

func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, has := n.all[name]
	return has
}

// untold stands for the number of a lease that has ended, in the batch or before. Another owner
// has the row by now.
const untold = -1

// errMaybeReleased means that a release may have ended the lease, or found it ended.
var errMaybeReleased = errors.New("sqllock: the lease is over, but the answer was lost that would tell whether it was released or lost before")

// grantBatch returns the numbers of the leases that it has granted.
func (d *Driver) grantBatch(ctx context.Context, all []request) (fences map[grantee]int64, err error) {
	text, args := d.texts.grantAll, []any{list(all...)}
	if d.texts.renewed != "" {
		at, some, err := d.number(ctx, text, args...)
		if err != nil || !some {
			return nil, err
		}
		text, args = d.texts.renewed, append(args, at)
	}
	return d.fences(ctx, text, args...)
}

// giveBatch returns the numbers of the leases that it has ended.
func (d *Driver) giveBatch(ctx context.Context, all []request) (fences map[grantee]int64, err error) {
	text, arg := d.texts.giveAll, list(all...)
	if d.texts.gaveAll == "" {
		return d.fences(ctx, text, arg)
	}
	var ended int64
	err = d.writeReady(ctx, func(on runner) (err error) {
		ended, err = written(ctx, on, text, arg)
		return err
	})
	if err != nil {
		return nil, err
	}
	fences = make(map[grantee]int64)
	if ended < int64(len(all)) {
		if fences, err = d.fences(ctx, d.texts.gaveAll, arg); errors.Is(err, ErrContended) { // which leases it has ended is not known
			err = errMaybeReleased
		}
		if err != nil {
			return nil, err
		}
	}
	var others []request // the rows of these do not tell
	for _, r := range all {
		if fence, told := fences[grantee{r.Name, r.Owner}]; !told {
			others = append(others, r)
		} else if fence > 0 {
			ended--
		}
	}
	for _, r := range others {
		if ended != int64(len(others)) { // some were ended before
			r.Fence = untold
		}
		fences[grantee{r.Name, r.Owner}] = r.Fence
	}
	return fences, nil
}

// fences runs a statement that returns names, owners and numbers.
func (d *Driver) fences(ctx context.Context, text string, args ...any) (fences map[grantee]int64, err error) {
	err = d.writeReady(ctx, func(on runner) error {
		fences = make(map[grantee]int64)
		return each(ctx, on, readFence(fences), text, args...)
	})
	return fences, err
}
