package leasehold

import (
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A batch is a group of holds that are renewed in one call. The call takes as long as its slowest
// renewal, and its time limit is the shortest of its holds. So holds whose last renewal failed are
// not mixed with others, and the time limits within a batch differ by less than a factor of two.
type batch struct {
	kind
	keeper   *keeper
	holds    []*hold
	renewals []driver.Renewal
	sent     boottime.Instant
	sentAt   time.Time     // sent, as a time.Time
	least    time.Duration // the shortest time limit of the renewals
}

// A kind says which holds may share a batch: those whose last renewal failed, or those that have
// about as much time left.
type kind struct {
	failed  bool // always false for a driver that cannot renew a batch
	urgency int
}

// maxSeparate bounds the calls in flight outside of the workers: renewals of holds whose last
// renewal failed, and notes after a hand-over.
const maxSeparate = maxWorkers

// renew renews holds that are due, in one call per batch, all concurrently. It schedules their next
// renewals. It does not wait for batches that failed the last time, because they may hang again.
func (k *keeper) renew(due []*entry) {
	var calls sync.WaitGroup
	batches := k.batchesOf(due)
	for i, b := range batches {
		switch {
		case b.failed && k.separately(b.renew): // it may hang again
		case b.failed: // too many such calls are in flight
			for _, h := range b.holds {
				h.plan(h.locker.clock.Now(), errInUse)
				h.calling.End()
			}
		case i < len(batches)-1:
			calls.Go(b.renew)
		default:
			b.renew()
		}
	}
	calls.Wait()
}

// separately makes a call to the engine outside of the workers, one of which is running, so that
// close waits for the call. It reports false if too many such calls are in flight.
func (k *keeper) separately(call func()) bool {
	select {
	case k.apart <- struct{}{}:
	default:
		return false
	}
	k.running.Go(func() {
		call()
		<-k.apart
	})
	return true
}

// batchesOf groups the holds that are due, and begins their calls.
func (k *keeper) batchesOf(due []*entry) (all []*batch) {
	sent, now := k.clock.Read()
	var unused []*hold
	defer func() { k.giveBack(unused) }()
	for _, e := range due {
		h := e.Value
		switch {
		case !h.check(sent, &unused):
			continue
		case !h.calling.TryBegin(): // for Extend or SetNote: no worker waits for that
			h.plan(sent, errInUse)
			continue
		}
		bound, err := h.startRenewal(sent, h.renewals.ttl)
		if err != nil {
			h.calling.End()
			continue
		}
		of := kind{k.driver != nil && h.renewals.failed, bits.Len64(uint64(bound))}
		i := slices.IndexFunc(all, func(b *batch) bool { return b.kind == of })
		if i < 0 {
			i, all = len(all), append(all, &batch{kind: of, keeper: k, sent: sent, sentAt: now, least: bound})
		}
		b := all[i]
		b.least = min(b.least, bound)
		b.holds = append(b.holds, h)
		b.renewals = append(b.renewals, driver.Renewal{Claim: h.claim, TTL: h.renewals.ttl})
	}
	return all
}

func (b *batch) renew() {
	for _, h := range b.holds {
		h.traceRenews()
	}
	least := b.least
	if !b.failed && len(b.holds) > 1 { // if it hangs, the others still have time for another call
		least /= 2
	}
	if by := b.sentAt.Add(least); len(b.holds) == 1 {
		h, r := b.holds[0], &b.renewals[0]
		call := h.newCall(b.keeper.renewing, by)
		r.Grant, r.Err = h.claim.Renew(call, r.TTL)
		call.end()
		b.answered(0)
	} else {
		b.renewAll(by)
	}
}

// renewAll renews the batch in one call, and applies each answer when it arrives.
func (b *batch) renewAll(by time.Time) {
	for i := range b.renewals {
		b.renewals[i].Answered = func() { b.answered(i) }
	}
	call := newBound(b.keeper.renewing, by)
	b.keeper.driver.RenewAll(call, b.renewals)
	call.end()
	for i, h := range b.holds {
		if h != nil {
			b.answered(i)
		}
	}
}

// answered applies the answer to one renewal, once. It removes the hold from the batch.
func (b *batch) answered(i int) {
	h, r := b.holds[i], &b.renewals[i]
	now := h.locker.clock.Now()
	b.holds[i] = nil
	err := h.finishRenewal(b.keeper.renewing, b.sent, now, r.TTL, r.Grant, r.Err)
	h.renewals.failed = err != nil
	h.plan(now, err)
	h.endRenewal(err)
}
