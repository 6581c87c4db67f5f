package leasehold

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A batch is holds that are renewed in one call. Those whose last renewal failed are apart
// from the others, and those that can wait for an answer from those that cannot wait half as
// long: a call lasts as long as its slowest, and no longer than its most urgent.
type batch struct {
	kind
	holds    []*hold
	renewals []driver.Renewal
	sent     boottime.Instant
	sentAt   time.Time     // sent, as package time has it
	least    time.Duration // how long the call may take
}

type kind struct {
	failed  bool
	urgency int
}

// maxApart bounds the calls in flight that renew what failed the last time.
const maxApart = maxWorkers

// renewTogether renews holds that are due, in one call for each kind, all at once, and plans what comes
// next for each. It does not wait for what failed the last time, which may hang again.
func (k *keeper) renewTogether(due []*entry) {
	var calls sync.WaitGroup
	batches := k.batchesOf(due)
	for i, b := range batches {
		switch {
		case b.failed:
			k.renewApart(b)
		case i < len(batches)-1:
			calls.Go(func() { b.renew(k.renewing, k.driver) })
		default:
			b.renew(k.renewing, k.driver)
		}
	}
	calls.Wait()
}

// renewEach renews holds one by one, where the driver cannot do otherwise.
func (k *keeper) renewEach(due []*entry) {
	for _, e := range due {
		h := e.Value
		if h.callForRenewal(k.clock.Now()) {
			err := h.extend(k.renewing, h.renewals.ttl)
			h.plan(h.locker.clock.Now(), err)
			h.endRenewal(err)
		}
	}
}

// renewApart renews b beside the workers, or puts it off when that is done too often at once.
func (k *keeper) renewApart(b *batch) {
	select {
	case k.apart <- struct{}{}:
	default:
		for _, h := range b.holds {
			h.plan(h.locker.clock.Now(), errInUse)
			h.calling.End()
		}
		return
	}
	k.running.Go(func() { // under a worker, which close waits for
		b.renew(k.renewing, k.driver)
		<-k.apart
	})
}

// batchesOf starts the renewals of what is due.
func (k *keeper) batchesOf(due []*entry) (all []*batch) {
	sent, now := k.clock.Read()
	for _, e := range due {
		h := e.Value
		if !h.callForRenewal(sent) {
			continue
		}
		bound, err := h.startRenewal(sent, h.renewals.ttl)
		if err != nil {
			h.calling.End()
			continue
		}
		of := kind{h.renewals.failed, bits.Len64(uint64(bound))}
		i := slices.IndexFunc(all, func(b *batch) bool { return b.kind == of })
		if i < 0 {
			i, all = len(all), append(all, &batch{kind: of, sent: sent, sentAt: now, least: bound})
		}
		b := all[i]
		b.least = min(b.least, bound)
		b.holds = append(b.holds, h)
		b.renewals = append(b.renewals, driver.Renewal{Claim: h.claim, TTL: h.renewals.ttl})
	}
	return all
}

func (b *batch) renew(ctx context.Context, d driver.BatchRenewer) {
	for _, h := range b.holds {
		h.traceRenews()
	}
	least := b.least
	if !b.failed && len(b.holds) > 1 { // if it hangs, most of it may not next time
		least /= 2
	}
	if by := b.sentAt.Add(least); len(b.holds) == 1 {
		h, r := b.holds[0], &b.renewals[0]
		call := h.newCall(ctx, by)
		r.Grant, r.Err = h.claim.Renew(call, r.TTL)
		call.end()
		b.answered(ctx, 0)
	} else {
		b.renewAll(ctx, d, by)
	}
}

// renewAll renews all in one call. Each is done with as soon as it is answered.
func (b *batch) renewAll(ctx context.Context, d driver.BatchRenewer, by time.Time) {
	for i := range b.renewals {
		b.renewals[i].Answered = func() { b.answered(ctx, i) }
	}
	call := newBound(ctx, by)
	d.RenewAll(call, b.renewals)
	call.end()
	for i, h := range b.holds {
		if h != nil {
			b.answered(ctx, i)
		}
	}
}

// answered acts on the answer to one renewal, once: the hold leaves the batch.
func (b *batch) answered(ctx context.Context, i int) {
	h, r := b.holds[i], &b.renewals[i]
	now := h.locker.clock.Now()
	b.holds[i] = nil
	err := h.finishRenewal(ctx, b.sent, now, r.TTL, r.Grant, r.Err)
	h.renewals.failed = err != nil
	h.plan(now, err)
	h.endRenewal(err)
}
