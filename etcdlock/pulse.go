package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// openWithin bounds the opening of the keep-alive stream.
const openWithin = 3 * time.Second

// A pulse keeps the sessions of a driver alive over one stream. It sends when somebody
// asks, one keep-alive of a session at a time: who asks meanwhile shares the next.
type pulse struct {
	kick    chan struct{} // has room for one
	queue   []*session    // guarded by Driver.mu; whose next is to be sent
	running bool          // guarded by Driver.mu
}

func (p *pulse) init() { p.kick = make(chan struct{}, 1) }

// A beat is one keep-alive of a session.
type beat struct {
	line *line     // that it was sent on; guarded by Driver.mu
	sent time.Time // guarded by Driver.mu
	done chan struct{}
	err  error // set before done is closed; errGone: the server has no such lease
}

// A line is one stream of keep-alives. The server answers in order.
type line struct {
	stream   grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	cancel   context.CancelFunc
	inFlight []*session // guarded by Driver.mu; in order
	broken   error      // guarded by Driver.mu
	again    error      // guarded by Driver.mu; why another line may do better, or nil
}

// beat asks for a keep-alive that is sent after now, unless the session lives for long
// enough. Requires d.mu.
func (d *Driver) beat(s *session) *beat {
	if s.covers(time.Now()) {
		return nil
	}
	if s.next == nil {
		s.next = &beat{done: make(chan struct{})}
		if s.flying == nil {
			d.enqueue(s)
		}
	}
	return s.next
}

// enqueue has the next beat of s sent. Requires d.mu.
func (d *Driver) enqueue(s *session) {
	d.pulse.queue = append(d.pulse.queue, s)
	if !d.pulse.running {
		d.pulse.running = true
		d.start(d.runPulse)
	}
	select {
	case d.pulse.kick <- struct{}{}:
	default:
	}
}

// await returns nil when the session was kept alive since b was asked for. A stream that
// does not answer is given up, and the next is opened at another member. Where users have
// passwords a stream keeps the token it was opened with, which ends; the next has a new one.
func (d *Driver) await(ctx context.Context, s *session, b *beat) error {
	pause := electing
	for refusals := 0; b != nil; pause *= 2 {
		err := d.awaitOne(ctx, s, b)
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case errors.Is(err, errHangs):
		case errors.Is(err, errOldToken) && refusals < maxRefusals:
			refusals++
		case !passes(err), sleep(ctx, pause) != nil:
			return err
		}
		d.mu.Lock()
		b = d.beat(s)
		d.mu.Unlock()
	}
	return nil
}

// errHangs says that a stream was given up because it did not answer.
var errHangs = errors.New("etcdlock: a member does not answer keep-alives")

// errOldToken says that a stream was refused for its token.
var errOldToken = errors.New("etcdlock: the token of a stream has ended")

// maxRefusals is how often a call opens a stream with a new token: a change of any user or
// role ends one that was just made.
const maxRefusals = 3

// awaitOne waits for one beat of s.
func (d *Driver) awaitOne(ctx context.Context, s *session, b *beat) error {
	doubt := time.NewTimer(hangAfter)
	defer doubt.Stop()
	for {
		select {
		case <-b.done:
			d.mu.Lock()
			defer d.mu.Unlock()
			if b.err != nil && !errors.Is(b.err, errGone) && b.line != nil && b.line.again != nil {
				return b.line.again
			}
			return b.err
		case <-d.life.Done():
			return errClosing
		case <-ctx.Done():
			d.giveUp(s, b)
			return d.explain(ctx, context.Cause(ctx))
		case <-doubt.C:
			d.giveUp(s, b)
			doubt.Reset(hangAfter)
		}
	}
}

// giveUp ends the stream that b was sent on, if it has had enough time to answer. A beat
// that was not sent yet waits for the one that flies.
func (d *Driver) giveUp(s *session, b *beat) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.line == nil && s.flying != nil {
		b = s.flying
	}
	if l := b.line; l != nil && l.broken == nil && time.Since(b.sent) > hangAfter/2 {
		l.again = errHangs
		l.cancel()
	}
}

// runPulse sends beats until the driver is closed. It opens a stream only when there is
// one to be sent.
func (d *Driver) runPulse() {
	var l *line
	for {
		select {
		case <-d.pulse.kick:
		case <-d.life.Done():
			return
		}
		for s := d.nextBeat(); s != nil; s = d.nextBeat() {
			var err error
			if l == nil || d.isBroken(l) {
				if l, err = d.openLine(); err != nil {
					d.mu.Lock()
					d.fail(s, d.explain(d.life, err))
					d.mu.Unlock()
					l = nil
					continue
				}
			}
			d.send(l, s)
		}
	}
}

func (d *Driver) nextBeat() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pulse.queue) == 0 {
		return nil
	}
	s := d.pulse.queue[0]
	d.pulse.queue = d.pulse.queue[1:]
	s.flying, s.next = s.next, nil
	return s
}

func (d *Driver) isBroken(l *line) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return l.broken != nil
}

func (d *Driver) openLine() (*line, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(d.life))
	late := time.AfterFunc(openWithin, cancel)
	stream, err := pb.NewLeaseClient(d.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if !late.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, err
	}
	l := &line{stream: stream, cancel: cancel}
	d.mu.Lock()
	d.start(func() { d.receive(l) })
	d.mu.Unlock()
	return l, nil
}

// send puts the flying beat of s on the line. An error shows at the receiver as well.
func (d *Driver) send(l *line, s *session) {
	d.mu.Lock()
	s.flying.line, s.flying.sent = l, time.Now()
	if l.broken != nil {
		d.fail(s, l.broken)
		d.mu.Unlock()
		return
	}
	l.inFlight = append(l.inFlight, s)
	d.mu.Unlock()
	if l.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)}) != nil {
		l.cancel()
	}
}

// receive takes the answers of a line until it ends.
func (d *Driver) receive(l *line) {
	defer l.cancel()
	for {
		resp, err := l.stream.Recv()
		if err == nil {
			err = d.answered(l, resp)
		}
		if err != nil {
			d.mu.Lock()
			l.broken = d.explain(d.life, err)
			if isOldToken(err) {
				l.again = fmt.Errorf("%w: %w", errOldToken, l.broken)
			}
			for _, s := range l.inFlight {
				d.fail(s, l.broken)
			}
			d.mu.Unlock()
			return
		}
	}
}

// answered matches an answer with the first beat in flight.
func (d *Driver) answered(l *line, resp *pb.LeaseKeepAliveResponse) error {
	d.mu.Lock()
	if len(l.inFlight) == 0 || int64(l.inFlight[0].id) != resp.ID {
		d.mu.Unlock()
		return errors.New("etcdlock: an answer to a keep-alive that was not asked for")
	}
	s := l.inFlight[0]
	l.inFlight = l.inFlight[1:]
	alive := resp.TTL > 0
	if alive {
		s.sent = s.flying.sent
	} else {
		s.flying.err = errGone
	}
	b := d.land(s)
	d.mu.Unlock()
	if !alive {
		d.lose(s) // before its callers hear of it
	}
	close(b.done)
	return nil
}

// fail answers the flying beat of s with err. Requires d.mu.
func (d *Driver) fail(s *session, err error) {
	s.flying.err = err
	close(d.land(s).done)
}

// land ends the flight of s's beat and has the next one sent. Requires d.mu.
func (d *Driver) land(s *session) *beat {
	b := s.flying
	s.flying = nil
	if s.next != nil {
		d.enqueue(s)
	}
	return b
}
