package locktest_test

import (
	"context"
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

// An engine serves a driver of this process to other processes, over a socket, so that
// the cases with real processes run without a database. It neither wakes nor notifies.
type engine struct {
	driver driver.Driver
	path   string
	gate   sync.RWMutex // held for writing while the engine is paused

	mu    sync.Mutex
	ln    net.Listener // guarded by mu
	conns []net.Conn   // guarded by mu
}

// startEngine serves d until t ends.
func startEngine(t testing.TB, d driver.Driver) *engine {
	t.Helper()
	e := &engine{driver: d, path: filepath.Join(t.TempDir(), "s")}
	e.listen(t)
	t.Cleanup(e.stop)
	return e
}

func (e *engine) listen(t testing.TB) {
	ln, err := net.Listen("unix", e.path)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ln = ln
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns = append(e.conns, conn)
			e.mu.Unlock()
			go e.serveConn(conn)
		}
	}()
}

// serveConn serves the calls of one process in their order: a Try whose caller gave up
// must not come after the Release that cleans up behind it.
func (e *engine) serveConn(conn net.Conn) {
	defer conn.Close()
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	for {
		var c call
		if in.Decode(&c) != nil || out.Encode(e.answer(c)) != nil {
			return
		}
	}
}

func (e *engine) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ln.Close()
	for _, c := range e.conns {
		c.Close()
	}
	e.conns = nil
}

func (e *engine) harness() locktest.Harness {
	return locktest.Harness{
		Open: func(t testing.TB) driver.Driver {
			d, err := dial(e.path)
			if err != nil {
				t.Fatalf("dial: %v", err)
			}
			return d
		},
		Pause: func(testing.TB) func() {
			e.gate.Lock()
			return sync.OnceFunc(e.gate.Unlock)
		},
		Restart: func(t testing.TB) {
			e.stop()
			time.Sleep(300 * time.Millisecond) // for callers to meet nobody
			e.listen(t)
		},
		Address:      e.path,
		NoLossNotice: true,
	}
}

// A call is one call to the engine, by an owner that it knows nothing else of.
type call struct {
	Do       string
	Request  request
	TTL      time.Duration
	Resource string
	Text     string
	Limit    int
	Fence    uint64
}

// A request is a driver.Request without its func.
type request struct {
	Resource, Owner, Note string
	Mode                  driver.Mode
	Limit, Weight         int
	TTL                   time.Duration
	Queue                 bool
}

type answer struct {
	Grant  driver.Grant
	Holder holder
	Retry  time.Duration
	State  state
	States []state
	Next   string
	Kind   string // of kinds
	Text   string // of any error
}

// A holder is a driver.Holder with its owner whole, which a driver.Holder does not let out.
type holder struct {
	Owner         string
	Mode          driver.Mode
	Limit, Weight int
	Fence         uint64
	Held          time.Duration
	Left          time.Duration
	TTL           time.Duration
	Note          string
}

func holderOf(h driver.Holder) holder {
	return holder{h.Owner.Reveal(), h.Mode, h.Limit, h.Weight, h.Fence, h.Held, h.Left, h.TTL, h.Note}
}

func (h holder) holder() driver.Holder {
	return driver.Holder{Owner: driver.OwnerOf(h.Owner), Mode: h.Mode, Limit: h.Limit, Weight: h.Weight, Fence: h.Fence, Held: h.Held, Left: h.Left, TTL: h.TTL, Note: h.Note}
}

// A state is a driver.State of such holders and waiters, of which it has what they share.
type state struct {
	Resource string
	Fence    uint64
	Limit    int
	Holders  []holder
	Waiters  []holder
}

func stateOf(s driver.State) state {
	of := state{Resource: s.Resource, Fence: s.Fence, Limit: s.Limit}
	for _, h := range s.Holders {
		of.Holders = append(of.Holders, holderOf(h))
	}
	for _, w := range s.Waiters {
		of.Waiters = append(of.Waiters, holder{Owner: w.Owner.Reveal(), Note: w.Note, Mode: w.Mode, Weight: w.Weight, Held: w.Waited})
	}
	return of
}

func (s state) state() driver.State {
	of := driver.State{Resource: s.Resource, Fence: s.Fence, Limit: s.Limit}
	for _, h := range s.Holders {
		of.Holders = append(of.Holders, h.holder())
	}
	for _, w := range s.Waiters {
		of.Waiters = append(of.Waiters, driver.Waiter{Owner: driver.OwnerOf(w.Owner), Note: w.Note, Mode: w.Mode, Weight: w.Weight, Waited: w.Held})
	}
	return of
}

var kinds = map[string]error{
	"busy": driver.ErrBusy, "lost": driver.ErrLost, "unsupported": driver.ErrUnsupported, "closed": driver.ErrClosed,
	"barred": driver.ErrBarred, "too heavy": driver.ErrTooHeavy,
}

func (e *engine) answer(c call) (a answer) {
	e.gate.RLock()
	defer e.gate.RUnlock()
	err := e.serve(c, &a)
	if busy, ok := errors.AsType[*driver.Busy](err); ok {
		a.Holder, a.Retry = holderOf(busy.Holder), busy.Retry
	}
	for kind, sentinel := range kinds {
		if errors.Is(err, sentinel) {
			a.Kind = kind
		}
	}
	if err != nil {
		a.Text = err.Error()
	}
	return a
}

func (e *engine) serve(c call, a *answer) (err error) {
	ctx, d := context.Background(), e.driver
	switch c.Do {
	case "inspect":
		s, err := d.(driver.Operator).Inspect(ctx, c.Resource)
		a.State = stateOf(s)
		return err
	case "list":
		all, next, err := d.(driver.Operator).List(ctx, c.Resource, c.Text, c.Limit)
		a.Next = next
		for _, s := range all {
			a.States = append(a.States, stateOf(s))
		}
		return err
	case "evict":
		return d.(driver.Operator).Evict(ctx, c.Resource, c.Request.Owner, c.Text)
	case "raise":
		return d.(driver.Operator).RaiseFence(ctx, c.Resource, c.Fence)
	case "limit":
		return d.(driver.Operator).SetLimit(ctx, c.Resource, c.Request.Limit)
	}
	r := c.Request
	claim, err := d.Claim(driver.Request{
		Resource: r.Resource, Owner: r.Owner, Note: r.Note, Mode: r.Mode, Limit: r.Limit, Weight: r.Weight, TTL: r.TTL, Queue: r.Queue,
	})
	if err != nil {
		return err
	}
	switch c.Do {
	case "try":
		a.Grant, err = claim.Try(ctx)
	case "renew":
		a.Grant, err = claim.Renew(ctx, c.TTL)
	case "release":
		err = claim.Release(ctx, driver.End{Linger: c.TTL})
	case "note":
		err = claim.Note(ctx, c.Request.Note)
	}
	return err
}

// A remote is a driver on an engine of another process.
type remote struct {
	path string

	mu     sync.Mutex
	link   *link // guarded by mu; nil: to be connected anew
	closed bool  // guarded by mu
}

// A link is one connection; answers come in the order of the calls.
type link struct {
	conn    net.Conn
	out     *gob.Encoder
	pending chan chan answer // closed channels stand for a connection that failed
}

func dial(path string) (driver.Driver, error) {
	r := &remote{path: path}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r, r.connect()
}

// connect requires r.mu.
func (r *remote) connect() error {
	if r.closed {
		return driver.ErrClosed
	}
	if r.link != nil {
		return nil
	}
	conn, err := net.Dial("unix", r.path)
	if err != nil {
		return err
	}
	l := &link{conn: conn, out: gob.NewEncoder(conn), pending: make(chan chan answer, 10_000)}
	r.link = l
	go r.receive(l)
	return nil
}

func (r *remote) receive(l *link) {
	in := gob.NewDecoder(l.conn)
	for {
		var a answer
		if in.Decode(&a) != nil {
			break
		}
		(<-l.pending) <- a
	}
	l.conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == l {
		r.link = nil
	}
	close(l.pending)
	for p := range l.pending {
		close(p)
	}
}

func (r *remote) send(c call) (<-chan answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.connect(); err != nil {
		return nil, err
	}
	got := make(chan answer, 1)
	r.link.pending <- got
	if err := r.link.out.Encode(c); err != nil {
		r.link.conn.Close()
		r.link = nil
		return nil, err
	}
	return got, nil
}

func (r *remote) do(ctx context.Context, c call) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, ctx.Err()
	}
	pending, err := r.send(c)
	if err != nil {
		return answer{}, err
	}
	select {
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case a, ok := <-pending:
		switch {
		case !ok:
			return answer{}, errors.New("connection lost")
		case a.Kind == "busy":
			return answer{}, &driver.Busy{Holder: a.Holder.holder(), Retry: a.Retry}
		case a.Kind != "":
			return answer{}, fmt.Errorf("%w: %s", kinds[a.Kind], a.Text)
		case a.Text != "":
			return answer{}, errors.New(a.Text)
		}
		return a, nil
	}
}

func (r *remote) Features() driver.Features {
	f := memory.New().Features()
	f.Wakes, f.Bars, f.Tells, f.Recalls, f.Keeps = false, false, false, false, false
	return f
}

func (r *remote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.link != nil {
		r.link.conn.Close()
	}
	return nil
}

func (r *remote) Claim(q driver.Request) (driver.Claim, error) {
	return &remoteClaim{r, request{q.Resource, q.Owner, q.Note, q.Mode, q.Limit, q.Weight, q.TTL, q.Queue}}, nil
}

func (r *remote) Inspect(ctx context.Context, resource string) (driver.State, error) {
	a, err := r.do(ctx, call{Do: "inspect", Resource: resource})
	return a.State.state(), err
}

func (r *remote) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	a, err := r.do(ctx, call{Do: "list", Resource: prefix, Text: after, Limit: limit})
	var all []driver.State
	for _, s := range a.States {
		all = append(all, s.state())
	}
	return all, a.Next, err
}

func (r *remote) Evict(ctx context.Context, resource, owner, reason string) error {
	_, err := r.do(ctx, call{Do: "evict", Resource: resource, Request: request{Owner: owner}, Text: reason})
	return err
}

func (r *remote) RaiseFence(ctx context.Context, resource string, fence uint64) error {
	_, err := r.do(ctx, call{Do: "raise", Resource: resource, Fence: fence})
	return err
}

func (r *remote) SetLimit(ctx context.Context, resource string, limit int) error {
	_, err := r.do(ctx, call{Do: "limit", Resource: resource, Request: request{Limit: limit}})
	return err
}

type remoteClaim struct {
	r   *remote
	req request
}

func (c *remoteClaim) Try(ctx context.Context) (driver.Grant, error) {
	a, err := c.r.do(ctx, call{Do: "try", Request: c.req})
	return a.Grant, err
}

func (c *remoteClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	a, err := c.r.do(ctx, call{Do: "renew", Request: c.req, TTL: ttl})
	return a.Grant, err
}

func (c *remoteClaim) Release(ctx context.Context, how driver.End) error {
	if err := how.Check(c.r.Features()); err != nil {
		return err
	}
	_, err := c.r.do(ctx, call{Do: "release", Request: c.req, TTL: how.Linger})
	return err
}

func (c *remoteClaim) Note(ctx context.Context, note string) error {
	req := c.req
	req.Note = note
	_, err := c.r.do(ctx, call{Do: "note", Request: req})
	return err
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // the tests mostly wait; it exists, and the command line overrides it
	locktest.Main(m, dial)
}

// TestRemoteConforms runs the suite on an engine in another process's reach.
func TestRemoteConforms(t *testing.T) {
	servers.Long(t, "engines run these cases with processes")
	locktest.Run(t, startEngine(t, memory.New()).harness())
}
