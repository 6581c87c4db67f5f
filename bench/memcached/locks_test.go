package memcached_test

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
)

// The locks that are compared.
const (
	ours       = "leasehold"
	oursGlobal = "leasehold, HandOver -1"
	byHand     = "add + delete" // what one writes by hand, with a try every 100 ms
)

// polling is by hand's period, and about that of ours.
const polling = 100 * time.Millisecond

var engine = contest.Engine{Name: "memcached", Competitors: []contest.Competitor{
	{Name: ours, Open: leaseholdWith(nil), Polls: polling},
	{Name: oursGlobal, Open: leaseholdWith(&leasehold.Options{HandOver: -1}), Polls: polling},
	// Above this its renewals open more connections at once than memcached takes.
	{Name: byHand, Open: openByHand, Polls: polling, Leases: 1000},
}}

// leaseholdWith counts as openByHand does: both clients write each command at once.
func leaseholdWith(opts *leasehold.Options) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		var wire contest.Wire
		d, err := memcachelock.New([]string{addr}, &memcachelock.Options{Dial: wire.Dial})
		if err != nil {
			return nil, err
		}
		l, err := contest.Leasehold(d, opts)
		if err != nil {
			return nil, err
		}
		l.Commands = wire.Writes.Load
		return l, nil
	}
}

// openByHand has the recipe of the memcached wiki. Its delete may hit the lock of whoever
// came after it had expired.
func openByHand(addr string) (*contest.Locker, error) {
	var wire contest.Wire
	client := memcache.New(addr)
	client.DialContext = wire.Dial
	// More than the defaults of 2 and 500 ms, which a thousand callers at once do not survive.
	client.MaxIdleConns, client.Timeout = 100, 10*time.Second
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		item := &memcache.Item{Key: "bare:" + name, Value: []byte(rand.Text()), Expiration: int32(contest.TTL / time.Second)}
		for {
			err := client.Add(item)
			if err == nil {
				return contest.Held{
					Unlock: func() error { return client.Delete(item.Key) },
					Renew:  func() error { return client.Touch(item.Key, item.Expiration) },
				}, nil
			}
			if !errors.Is(err, memcache.ErrNotStored) {
				return contest.Held{}, err
			}
			select {
			case <-time.After(polling):
			case <-ctx.Done():
				return contest.Held{}, context.Cause(ctx)
			}
		}
	}
	return &contest.Locker{Lock: lock, Commands: wire.Writes.Load, Close: func() { client.Close() }}, nil
}
