package explored

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/leasehold-go/leasehold/locktest/explore"
)

// A service is an etcd that is spoken to by gRPC.
type service struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	*etcd
	grpc *grpc.Server
}

// window is large enough for gRPC not to measure what a connection can take, for which it asks on the way.
const window = 1 << 20

// serve has the etcd answer those that dial, until stop.
func (e *etcd) serve() (stop func()) {
	s := &service{etcd: e}
	s.grpc = grpc.NewServer(grpc.UnaryInterceptor(decided), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
	pb.RegisterKVServer(s.grpc, s)
	pb.RegisterLeaseServer(s.grpc, s)
	pb.RegisterWatchServer(s.grpc, s)
	go s.grpc.Serve(e.doors) // returns when it is stopped
	return func() {
		e.close()
		s.grpc.Stop()
	}
}

// An answered is what came of a call.
type answered struct {
	resp any
	err  error
}

func (a answered) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprint(a.resp)
}

// decided has the explorer decide what becomes of a call. Nobody sends one again by itself but the
// client a grant, and reads, to which it makes no difference.
func decided(ctx context.Context, req any, _ *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
	line := lineOf(ctx)
	if line == nil {
		return serve(ctx, req)
	}
	what, stream, answers := nameOf(req), line.Stream(nil), make(chan answered, 1)
	if what != "grant" {
		stream.Once()
	}
	stream.Send(what, "", func() any {
		resp, err := serve(ctx, req)
		return answered{resp, err}
	}, func(a any) { answers <- a.(answered) })
	select {
	case a := <-answers:
		return a.resp, a.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// nameOf says for people what is asked for.
func nameOf(req any) string {
	switch r := req.(type) {
	case *pb.LeaseGrantRequest:
		return "grant"
	case *pb.LeaseTimeToLiveRequest:
		return "time left"
	case *pb.LeaseKeepAliveRequest:
		return "keep-alive"
	case *pb.WatchRequest:
		if r.GetCancelRequest() != nil {
			return "unwatch"
		}
		return "watch"
	case *pb.DeleteRangeRequest:
		return "delete"
	case *pb.TxnRequest:
		for _, op := range r.Success {
			if op.GetRequestPut() != nil {
				return "put"
			} else if op.GetRequestDeleteRange() != nil {
				return "delete"
			}
		}
	}
	return "read"
}

func (s *service) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read(r)
}

func (s *service) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.txn(r)
}

func (s *service) DeleteRange(_ context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp, err := s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}}})
	if err != nil {
		return nil, err
	}
	deleted := resp.Responses[0].GetResponseDeleteRange()
	deleted.Header = resp.Header
	return deleted, nil
}

func (s *service) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant(r)
}

func (s *service) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revokeNow(r)
}

func (s *service) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeToLive(r), nil
}

// LeaseKeepAlive answers in the order in which it is asked.
func (s *service) LeaseKeepAlive(stream grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) error {
	turn := make(chan struct{}, 1)
	return newTalk(stream).listen(func(r *pb.LeaseKeepAliveRequest) []*pb.LeaseKeepAliveResponse {
		turn <- struct{}{}
		defer func() { <-turn }()
		return []*pb.LeaseKeepAliveResponse{s.keepAlive(r)}
	})
}

func (s *service) Watch(stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	t := newTalk(stream)
	var all []*watcher // guarded by s.mu
	ended := false     // guarded by s.mu
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		ended = true
		for _, w := range all {
			s.unwatch(w)
		}
	}()
	return t.listen(func(r *pb.WatchRequest) []*pb.WatchResponse {
		s.mu.Lock()
		defer s.mu.Unlock()
		if ended {
			return nil
		}
		if c := r.GetCancelRequest(); c != nil {
			i := slices.IndexFunc(all, func(w *watcher) bool { return w.id == c.WatchId })
			s.unwatch(all[i])
			return []*pb.WatchResponse{{Header: s.header(), WatchId: c.WatchId, Canceled: true}}
		}
		w, answers := s.watch(int64(len(all)), r.GetCreateRequest(), t.push)
		all = append(all, w)
		return answers
	})
}

// A talk is a stream of a connection.
type talk[In, Out any] struct {
	stream grpc.BidiStreamingServer[In, Out]
	line   *explore.Line // nil: no network is between
	broken chan struct{} // closed when the server ends the stream
	mu     sync.Mutex    // held while something is sent
	ended  bool          // guarded by mu
}

func newTalk[In, Out any](stream grpc.BidiStreamingServer[In, Out]) *talk[In, Out] {
	t := &talk[In, Out]{stream: stream, broken: make(chan struct{})}
	if line := lineOf(stream.Context()); line != nil {
		t.line = line.Stream(sync.OnceFunc(func() { close(t.broken) }))
		t.line.Once()
	}
	return t
}

// listen has each request served, until the client ends the stream, or the server does, as one that has no leader.
func (t *talk[In, Out]) listen(serve func(*In) []*Out) error {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ended = true
	}()
	heard := make(chan error, 1)
	go func() { heard <- t.hear(serve) }()
	select {
	case err := <-heard:
		return err
	case <-t.broken:
		return rpctypes.ErrGRPCNoLeader
	}
}

func (t *talk[In, Out]) hear(serve func(*In) []*Out) error {
	for {
		r, err := t.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case t.line == nil:
			t.send(serve(r)...)
		default:
			t.line.Send(nameOf(r), "", func() any { return serve(r) }, func(a any) { t.send(a.([]*Out)...) })
		}
	}
}

func (t *talk[In, Out]) send(all ...*Out) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range all {
		if !t.ended {
			t.stream.Send(m) // a stream that breaks is broken for Recv too
		}
	}
}

// push sends what was not asked for.
func (t *talk[In, Out]) push(m *Out) {
	if t.line == nil {
		t.send(m)
		return
	}
	t.line.Push("hears", func() { t.send(m) })
}

// doors are where connections come in, one after the other.
type doors struct {
	in    chan net.Conn
	ended chan struct{}
	end   func()
}

func newDoors() *doors {
	d := &doors{in: make(chan net.Conn), ended: make(chan struct{})}
	d.end = sync.OnceFunc(func() { close(d.ended) })
	return d
}

func (d *doors) Accept() (net.Conn, error) {
	select {
	case c := <-d.in:
		return c, nil
	case <-d.ended:
		return nil, net.ErrClosed
	}
}

func (d *doors) Close() error {
	d.end()
	return nil
}

func (*doors) Addr() net.Addr { return here{} }

// A plug is one connection of a client.
type plug struct {
	near, far *conn         // the ends of the client and of the server
	line      *explore.Line // nil: no network is between

	mu       sync.Mutex
	unparsed []byte // guarded by mu
	greeted  bool   // guarded by mu
}

// A farEnd is what the server has of a connection. Its address is the plug.
type farEnd struct {
	*conn
	plug *plug
}

func (f farEnd) RemoteAddr() net.Addr { return plugAddr{plug: f.plug} }

type plugAddr struct {
	here
	plug *plug
}

// lineOf is the explorer's of the connection that a call came over; nil: no network is between.
func lineOf(ctx context.Context) *explore.Line {
	from, _ := grpcpeer.FromContext(ctx)
	return from.Addr.(plugAddr).plug.line
}

// dial connects a process with the etcd, or without one whoever asks it directly.
func (e *etcd) dial(ctx context.Context, p *explore.Process) (net.Conn, error) {
	x := &plug{}
	x.near, x.far = newConn(x.wrote, x.breaks), newConn(x.answered, x.breaks)
	if p != nil {
		x.line = p.Line(x.fails)
	}
	e.mu.Lock()
	e.plugs = append(e.plugs, x)
	e.mu.Unlock()
	select {
	case e.doors.in <- farEnd{x.far, x}:
		return x.near, nil
	case <-e.doors.ended:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fails breaks both ends.
func (x *plug) fails() {
	x.near.fail(errBroken)
	x.far.fail(errBroken)
}

// breaks ends the connection from one side. What was sent may still get to the server.
func (x *plug) breaks() {
	if x.fails(); x.line != nil {
		x.line.Close()
	}
}

// greeting is what a client begins with, before its frames.
const greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// wrote passes on what a client wrote, but for its questions whether the connection stands: the
// network answers them, if it does.
func (x *plug) wrote(b []byte) {
	if x.line == nil {
		x.far.receive(b)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unparsed = append(x.unparsed, b...)
	if !x.greeted && len(x.unparsed) >= len(greeting) {
		x.greeted = true
		x.pass(len(greeting))
	}
	const header, ping, answer = 9, 6, 1
	for x.greeted && len(x.unparsed) >= header {
		f := x.unparsed
		n := header + int(f[0])<<16 + int(f[1])<<8 + int(f[2])
		switch {
		case len(f) < n:
			return
		case f[3] == ping && f[4]&answer == 0:
			back := slices.Clone(f[:n])
			back[4] |= answer
			x.unparsed = f[n:]
			x.line.Beat("ping", func() any { return "it stands" }, func(any) { x.near.receive(back) })
		default:
			x.pass(n)
		}
	}
}

// answered passes on what the server wrote, as long as anything comes back: gRPC says some things by itself.
func (x *plug) answered(b []byte) {
	if x.line == nil || x.line.Passes() {
		x.near.receive(b)
	}
}

// pass has the server receive what is unparsed of so many bytes. Requires x.mu.
func (x *plug) pass(n int) {
	x.far.receive(x.unparsed[:n])
	x.unparsed = x.unparsed[n:]
}
