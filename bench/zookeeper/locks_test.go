package zookeeper_test

import (
	"context"
	"io"
	"log"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/zklock"
)

// The locks that are compared. All have their defaults, and ours leases, zk.Lock sessions, of
// contest.TTL.
const (
	ours       = "leasehold"
	oursGlobal = "leasehold, HandOver -1"
	zkLock     = "zk.Lock" // go-zookeeper's own: no fence, no context, no deadline
)

// first is the first of the servers, which addr has with commas. All locks are there: a client
// chooses at random, and one that has chosen the leader is served sooner than another.
func first(addr string) []string { return strings.Split(addr, ",")[:1] }

var competitors = []contest.Competitor{
	{Name: ours, Open: leaseholdWith(nil)},
	{Name: oursGlobal, Open: leaseholdWith(&leasehold.Options{HandOver: -1})},
	{Name: zkLock, Open: openZKLock},
}

func leaseholdWith(opts *leasehold.Options) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		d, err := zklock.New(first(addr), &zklock.Options{SessionTimeout: contest.TTL * 3 / 2})
		if err != nil {
			return nil, err
		}
		return contest.Leasehold(d, opts)
	}
}

func openZKLock(addr string) (*contest.Locker, error) {
	conn, _, err := zk.Connect(first(addr), contest.TTL, zk.WithLogger(log.New(io.Discard, "", 0)), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		l := zk.NewLock(conn, "/zklock/"+strings.ReplaceAll(name, "/", "-"), zk.WorldACL(zk.PermAll))
		held := make(chan error, 1)
		go func() { held <- l.Lock() }() // it cannot be given up
		select {
		case err := <-held:
			return contest.Held{Unlock: l.Unlock}, err
		case <-ctx.Done():
			go func() {
				if <-held == nil {
					_ = l.Unlock() // the connection may be closed by now, which does it too
				}
			}()
			return contest.Held{}, context.Cause(ctx)
		}
	}
	return &contest.Locker{Lock: lock, Close: conn.Close}, nil
}
