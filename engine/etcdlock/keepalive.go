package etcdlock

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// keepAlives are the keep-alives of a driver, over one stream, because each stream of a client with
// a password begins with a login. A goroutine sends those that are wanted, waits for the answers,
// and continues with those that are wanted by then. It ends when none is. A caller shares the
// keep-alive of its session that is not sent yet.
type keepAlives struct {
	wanted  []*session // guarded by Driver.mu, as is running
	running bool
	opened  int // guarded by Driver.mu; number of the present stream

	stream grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] // used by the goroutine alone, as are cancel and hung; nil: there is none
	cancel context.CancelFunc                                                            // ends stream
	hung   int                                                                           // how many streams were given up since the last quick answer
}

// patience is how long an answer may take before the stream is given up. A member that hangs delays
// nobody for long, and a slow one still gets to answer. A renewal may take five seconds in all.
func (a *keepAlives) patience() time.Duration { return hangAfter << min(a.hung, 2) }

// A keepAlive is one keep-alive of a session.
type keepAlive struct {
	session *session
	sent    boottime.Instant
	done    chan struct{}
	err     error // set before done is closed; errGone: the server has no such lease
}

// keepAlive asks for a keep-alive that is sent after now. It returns nil if there is no session, or
// if the session lives long enough. Requires d.mu.
func (d *Driver) keepAlive(s *session) *keepAlive {
	if s == nil || s.covers(d.clock.Now()) {
		return nil
	}
	if s.asked == nil {
		s.asked = &keepAlive{session: s, done: make(chan struct{})}
		d.alive.wanted = append(d.alive.wanted, s)
		if !d.alive.running {
			d.alive.running = true
			d.life.Go(d.runKeepAlives)
		}
	}
	return s.asked
}

// await returns nil when the session was kept alive since k was asked for, or if k is nil.
func (d *Driver) await(ctx context.Context, k *keepAlive) error {
	if k == nil {
		return nil
	}
	return d.repeating(ctx, hangAfter, func(ctx context.Context) error {
		if waiting.Closed(k.done) && k.err != nil { // otherwise its answer may still come
			d.mu.Lock()
			k = d.keepAlive(k.session)
			d.mu.Unlock()
			if k == nil {
				return nil
			}
		}
		if err := d.waitUntil(ctx, k.done); err != nil {
			return err
		}
		return k.err
	})
}

func (d *Driver) runKeepAlives() {
	for all := d.takeWanted(); len(all) > 0; all = d.takeWanted() {
		d.keepAll(all)
	}
}

// takeWanted returns the keep-alives to be sent now. If there are none, the goroutine must end.
func (d *Driver) takeWanted() (all []*keepAlive) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.alive.wanted {
		all = append(all, s.asked)
		s.asked = nil
	}
	d.alive.wanted = nil
	d.alive.running = len(all) > 0
	return all
}

// keepAll sends keep-alives and hands out their answers. It gives up a stream that does not answer,
// or that refuses. Such a stream may be at a member that hangs, or at none. With passwords, it
// keeps the token that it was opened with, which ends. The callers that wait ask again, on the next
// stream.
func (d *Driver) keepAll(all []*keepAlive) {
	answered, err := d.exchange(all)
	if err == nil {
		return
	}
	d.alive.cancel()
	d.alive.stream = nil
	for _, k := range all[answered:] {
		k.err = d.explain(d.life, rpctypes.Error(err))
		close(k.done)
	}
}

// errHangs means that a stream was given up because it did not answer. It is a passing error.
var errHangs = status.Error(codes.Unavailable, "etcdlock: a member does not answer keep-alives")

// exchange sends keep-alives on the stream, which it opens if there is none, and returns how many
// were answered. The server answers in order.
func (d *Driver) exchange(all []*keepAlive) (answered int, err error) {
	a := &d.alive
	opening := a.stream == nil
	var ctx context.Context
	if opening {
		ctx, a.cancel = context.WithCancel(clientv3.WithRequireLeader(d.life))
	}
	began := time.Now()
	late := time.AfterFunc(a.patience(), a.cancel)
	defer func() {
		if !late.Stop() {
			err = errHangs
			a.hung++
			d.links.Hung(began)
		}
	}()
	if opening {
		if a.stream, err = pb.NewLeaseClient(d.client.ActiveConnection()).LeaseKeepAlive(ctx); err != nil {
			return 0, err
		}
		d.mu.Lock()
		a.opened++
		d.mu.Unlock()
	}
	for _, k := range all {
		k.sent = d.clock.Now()
		if a.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(k.session.id)}) != nil {
			break // Recv has the reason
		}
	}
	for i, k := range all {
		resp, err := a.stream.Recv()
		if err == nil && resp.ID != int64(k.session.id) {
			err = errors.New("etcdlock: an answer to a keep-alive that was not asked for")
		}
		if err != nil {
			return i, err
		}
		if d.clock.Now().Sub(k.sent) < hangAfter {
			a.hung = 0
		}
		d.kept(k, resp.TTL > 0)
	}
	return len(all), nil
}

// kept answers k.
func (d *Driver) kept(k *keepAlive, alive bool) {
	if alive {
		d.mu.Lock()
		k.session.sent = k.sent
		if k.session.stream != d.alive.opened {
			k.session.stream = d.alive.opened
			d.lookThrough(k.session)
		}
		d.mu.Unlock()
	} else {
		k.err = errGone
		d.lose(k.session) // before its callers can see that it is gone
	}
	close(k.done)
}
