package etcd_test

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
)

// The locks that are compared.
const (
	ours       = "leasehold"
	oursGlobal = "leasehold, HandOver -1"
	ownSession = "concurrency, own sessions"   // a session for each lock held or waited for
	oneSession = "concurrency, shared session" // whose holders do not exclude each other: a mutex does
)

var peers = []string{ownSession, oneSession}

var competitors = []contest.Competitor{
	{Name: ours, Open: open(leaseholdWith(nil))},
	{Name: oursGlobal, Open: open(leaseholdWith(&leasehold.Options{HandOver: -1}))},
	{Name: ownSession, Open: open(ownSessions)},
	{Name: oneSession, Open: open(sharedSession)},
}

// open opens a lock on a client of its own, which ends with it. addr is the members'
// addresses, separated by commas.
func open(lock func(*clientv3.Client) (*contest.Locker, error)) func(addr string) (*contest.Locker, error) {
	return func(addr string) (*contest.Locker, error) {
		sent := &messages{}
		client, err := clientv3.New(clientv3.Config{
			Endpoints: strings.Split(addr, ","), Logger: zap.NewNop(),
			DialOptions: []grpc.DialOption{grpc.WithStatsHandler(sent)},
		})
		if err != nil {
			return nil, err
		}
		l, err := lock(client)
		if err != nil {
			client.Close()
			return nil, err
		}
		end := l.Close
		l.Commands = sent.n.Load
		l.Close = func() { end(); client.Close() }
		return l, nil
	}
}

func leaseholdWith(opts *leasehold.Options) func(*clientv3.Client) (*contest.Locker, error) {
	return func(client *clientv3.Client) (*contest.Locker, error) {
		d, err := etcdlock.New(client, nil)
		if err != nil {
			return nil, err
		}
		return contest.Leasehold(d, opts)
	}
}

const ttlSeconds = int(contest.TTL / time.Second)

// ownSessions has a session for each lock that is held or waited for at once, and keeps
// those that it has.
func ownSessions(client *clientv3.Client) (*contest.Locker, error) {
	const most = 20000
	idle := make(chan *concurrency.Session, most)
	lock := func(ctx context.Context, name string) (contest.Held, error) {
		var s *concurrency.Session
		select {
		case s = <-idle:
		default:
			var err error
			if s, err = concurrency.NewSession(client, concurrency.WithTTL(ttlSeconds)); err != nil {
				return contest.Held{}, err
			}
		}
		held, err := lockIn(ctx, s, "own/"+name, func() { idle <- s })
		if err != nil {
			idle <- s
		}
		return held, err
	}
	return &contest.Locker{Lock: lock, Close: func() {}}, nil // the sessions end with the client
}

func sharedSession(client *clientv3.Client) (*contest.Locker, error) {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(ttlSeconds))
	if err != nil {
		return nil, err
	}
	lock := contest.Local(func(ctx context.Context, name string) (contest.Held, error) {
		return lockIn(ctx, s, "shared/"+name, func() {})
	})
	return &contest.Locker{Lock: lock, Close: func() { s.Close() }}, nil
}

// lockIn locks a name that no other competitor uses: a Lock that is cancelled while its put
// is on its way leaves the key behind.
func lockIn(ctx context.Context, s *concurrency.Session, name string, done func()) (contest.Held, error) {
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(ctx); err != nil {
		return contest.Held{}, err
	}
	return contest.Held{Unlock: func() error {
		defer done()
		return m.Unlock(context.Background())
	}}, nil
}

// messages counts what a client sends: requests, and messages of streams.
type messages struct{ n atomic.Int64 }

func (m *messages) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		m.n.Add(1)
	}
}

func (*messages) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*messages) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*messages) HandleConn(context.Context, stats.ConnStats)                       {}
