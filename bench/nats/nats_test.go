// Package nats_test compares Leasehold on NATS with two bare puts that check the revision.
package nats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/crowd"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The locks that are compared.
const (
	ours = "leasehold"
	bare = "two puts" // of a key that nobody else wants, each if its revision is the last one
)

var engine = contest.Engine{Name: "NATS", Competitors: []contest.Competitor{
	{Name: ours, Open: openOurs},
	{Name: bare, Open: openBare, Polls: polling},
}}

const polling = 100 * time.Millisecond

func TestMain(m *testing.M) { engine.Main(m) }

// connected is a connection of its own; close ends it.
func connected(addr string) (nc *nats.Conn, js jetstream.JetStream, err error) {
	if nc, err = nats.Connect("nats://" + addr); err != nil {
		return nil, nil, err
	}
	if js, err = jetstream.New(nc); err == nil {
		err = natslock.CreateBucket(context.Background(), js, "locks", 1)
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

func openOurs(addr string) (*contest.Locker, error) {
	nc, js, err := connected(addr)
	if err != nil {
		return nil, err
	}
	d, err := natslock.New(js, "locks", nil)
	if err != nil {
		return nil, err
	}
	l, err := contest.Leasehold(d, nil)
	if err != nil {
		return nil, err
	}
	end := l.Close
	l.Close = func() { end(); nc.Close() }
	l.Commands = func() int64 { return int64(nc.Stats().OutMsgs) }
	return l, nil
}

func openBare(addr string) (*contest.Locker, error) {
	nc, js, err := connected(addr)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(context.Background(), "locks")
	if err != nil {
		return nil, err
	}
	last := make(map[string]uint64) // by key; one goroutine alone uses it
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		key := "bare-" + name
		revision, err := kv.Update(ctx, key, []byte(`{"owner":"a"}`), last[key])
		if errors.Is(err, jetstream.ErrKeyExists) { // of a former run
			entry, err := kv.Get(ctx, key)
			if err != nil {
				return contest.Held{}, err
			}
			revision, err = kv.Update(ctx, key, []byte(`{"owner":"a"}`), entry.Revision())
			if err != nil {
				return contest.Held{}, err
			}
		} else if err != nil {
			return contest.Held{}, err
		}
		return contest.Held{Unlock: func() (err error) {
			last[key], err = kv.Update(context.Background(), key, []byte("{}"), revision)
			return err
		}}, nil
	}
	return &contest.Locker{Lock: lock, Close: nc.Close, Commands: func() int64 { return int64(nc.Stats().OutMsgs) }}, nil
}

// BenchmarkNATS starts one server on the same machine, which has each write on the disk before it
// answers.
func BenchmarkNATS(b *testing.B) {
	server := servers.StartNATS(b, 1, "")[0]
	contest.Server("nats-server, sync_interval: always")
	engine.CPU = func() time.Duration { return crowd.ProcessCPU(b, server.Pid()) }
	contest.Run(b, contest.Part{Name: "Alone", Run: func(b *testing.B) {
		s := engine.Alone(b, server.Addr(), bare, bare, ours)
		contest.AtMost("alone: times two bare puts", s.Ratio(ours, bare), 1.3)
		contest.AtMost("alone: messages a cycle", s.Commands(ours), 2.1)
	}})
}
