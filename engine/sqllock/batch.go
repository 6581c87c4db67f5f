package sqllock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/record"
)

const (
	// fewAlone is how many requests of a kind are on their way by themselves before others share a statement.
	fewAlone = 8
	// batchPause bounds how long a batch waits for one of them: one that hangs delays nobody for longer.
	batchPause = 10 * time.Millisecond
	// batchWithin bounds the statement of a batch. Those who wait for it leave it before.
	batchWithin = 5 * time.Second
	maxBatch    = 200
	// maxFree is how many names a driver keeps that it has left free.
	maxFree = 10000
)

// A request is what one call asks for in a batch, as JSON has it.
type request struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	TTL   int64  `json:"ttl"` // in microseconds
	Note  string `json:"note,omitempty"`
	Fence int64  `json:"fence,omitempty"` // the number of the grant that ends
}

// A batcher sends one kind of request: each by a statement of its own while few are on their way, else many by one
// statement, which is one commit. Such a statement passes over rows that are missing, taken, waited for or locked by
// others. Who is passed over asks alone.
type batcher struct {
	send func(ctx context.Context, all []request) (fences map[grantee]int64, err error)

	mu    sync.Mutex
	alone int    // guarded by mu; requests that were sent alone and have no answer
	sent  int    // guarded by mu; batches that have no answer
	next  *batch // guarded by mu; that others may join; nil: there is none
}

// A batch is requests that are sent at once. No two are for one name.
type batch struct {
	requests  []request
	names     map[string]bool
	late      *time.Timer       // sends it
	delivered chan struct{}     // closed when it has an answer
	fences    map[grantee]int64 // set before
	err       error             // set before
}

// ask sends a request with others, or else has alone send it.
func (b *batcher) ask(ctx context.Context, r request, alone func() (int64, bool, error)) (fence int64, found bool, err error) {
	if batch := b.join(r); batch != nil {
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
			return 0, false, errUntold
		case fence > 0:
			return fence, true, nil
		}
		b.begins()
	}
	defer b.ends(&b.alone)
	return alone()
}

// join puts r into the batch that is sent next; nil: it is to be sent alone.
func (b *batcher) join(r request) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.next
	switch {
	case next == nil && b.sent == 0 && b.alone < fewAlone, next != nil && next.names[r.Name]:
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

// depart has the next batch be sent by another goroutine. Requires mu.
func (b *batcher) depart() {
	next := b.next
	b.next = nil
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

// overdue sends a batch that has waited for long, unless it was sent.
func (b *batcher) overdue(next *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == next {
		b.depart()
	}
}

func (b *batcher) begins() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alone++
}

// ends notes that a statement has its answer, one of so many. The next batch is sent when none is on its way.
func (b *batcher) ends(many *int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*many--
	if b.next != nil && b.sent == 0 {
		b.depart()
	}
}

// batches are of one driver.
type batches struct {
	grants, gives batcher

	mu   sync.Mutex
	free map[string]struct{} // guarded by mu; names that the driver has left free, and whose rows are there
}

func (b *batches) init(d *Driver) {
	b.free = make(map[string]struct{})
	b.grants.send, b.gives.send = d.grantBatch, d.giveBatch
}

// left notes whether the driver has left a name free.
func (b *batches) left(name string, free bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !free:
		delete(b.free, name)
	case len(b.free) == maxFree:
		clear(b.free)
	default:
		b.free[name] = struct{}{}
	}
}

func (b *batches) isFree(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, free := b.free[name]
	return free
}

// untold stands for the number of a lease that has ended, by the batch or before: another has the row by now.
const untold = -1

// errUntold: a release may have ended the lease, or found it ended.
var errUntold = errors.New("sqllock: the resource has been granted since, which does not tell whether the lease was released or lost before")

// grantBatch returns the numbers of the leases that it has granted.
func (d *Driver) grantBatch(ctx context.Context, all []request) (fences map[grantee]int64, err error) {
	text, arg := d.texts.grantAll, list(all...)
	if d.texts.renewed != "" { // what these owners hold afterwards, they were granted now
		if err := d.exec(ctx, text, arg); err != nil {
			return nil, err
		}
		text = d.texts.renewed
	}
	return d.fences(ctx, text, arg)
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
	switch {
	case err != nil:
		return nil, err
	case ended < int64(len(all)):
		fences, err = d.fences(ctx, d.texts.gaveAll, arg)
		if errors.Is(err, ErrContended) { // which leases it has ended is not known
			err = errUntold
		}
		for _, r := range all {
			if _, told := fences[grantee{r.Name, r.Owner}]; err == nil && !told { // another has locked the row by now
				fences[grantee{r.Name, r.Owner}] = untold
			}
		}
		return fences, err
	}
	fences = make(map[grantee]int64)
	for _, r := range all {
		fences[grantee{r.Name, r.Owner}] = r.Fence
	}
	return fences, nil
}

// fences runs a statement that returns names, owners and numbers.
func (d *Driver) fences(ctx context.Context, text, arg string) (fences map[grantee]int64, err error) {
	err = d.writeReady(ctx, func(on runner) error {
		fences = make(map[grantee]int64)
		return each(ctx, on, readFence(fences), text, arg)
	})
	return fences, err
}

// grant asks for a free resource that nobody waits for.
func (c *claim) grant(ctx context.Context) (number int64, granted bool, err error) {
	ttl := record.Micros(c.req.TTL)
	alone := func() (int64, bool, error) {
		number, granted, err := c.d.number(ctx, c.d.texts.grant, c.req.Resource, c.req.Owner, ttl, c.req.Note)
		if err == nil && !granted {
			c.d.batches.left(c.req.Resource, false)
		}
		return number, granted, err
	}
	if c.d.texts.grantAll == "" || !c.d.batches.isFree(c.req.Resource) {
		return alone()
	}
	return c.d.batches.grants.ask(ctx, request{Name: c.req.Resource, Owner: c.req.Owner, TTL: ttl, Note: c.req.Note}, alone)
}

// free ends a lease of known fence.
func (c *claim) free(ctx context.Context, linger time.Duration) (found bool, err error) {
	plain := linger == 0 && !c.lease.alone.IsZero() // maybe nobody waits
	alone := func() (_ int64, found bool, err error) {
		if plain && c.d.texts.give != "" && time.Since(c.lease.alone) < aloneFor {
			found, err = c.d.changed(ctx, c.d.texts.give, c.req.Resource, c.req.Owner, c.lease.number)
		}
		if !found && err == nil {
			found, err = c.d.changed(ctx, c.d.texts.free, c.req.Resource, c.req.Owner, record.Micros(linger), c.lease.number)
		}
		return 0, found, err
	}
	if plain && c.d.texts.giveAll != "" {
		_, found, err = c.d.batches.gives.ask(ctx, request{Name: c.req.Resource, Owner: c.req.Owner, Fence: c.lease.number}, alone)
	} else {
		_, found, err = alone()
	}
	if found && linger == 0 && c.d.texts.grantAll != "" {
		c.d.batches.left(c.req.Resource, true)
	}
	return found, err
}
