package redislock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// A pipeline leads to one server. It makes a connection when one is needed, and another when that
// has ended.
type pipeline struct {
	node     *pipelines // that it belongs to
	dialer   dialer
	replicas int // how many replicas must acknowledge its calls
	logins   storeurl.Logins

	mu     sync.Mutex
	conn   *conn   // guarded by mu; nil: not connected
	making *making // guarded by mu; nil: not connecting
}

// A making is a connection that is being made. All callers that need it wait for it.
type making struct {
	done chan struct{}
	conn *conn // set before done is closed, unless err is
	err  error
}

// connection returns the connection, or waits until one is made. It returns an error if that fails
// or ctx ends.
func (p *pipeline) connection(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	if n := p.conn; n != nil {
		p.mu.Unlock()
		return n, nil
	}
	m := p.making
	if m == nil {
		if p.node.life.Err() != nil {
			p.mu.Unlock()
			return nil, redis.ErrClosed
		}
		m = &making{done: make(chan struct{})}
		p.making = m
		go p.make(m)
	}
	p.mu.Unlock()
	select {
	case <-m.done:
		return m.conn, m.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

const (
	// If connecting takes longer than makeAgain, another connection is tried beside it, up to
	// maxMakings at once. A lost packet is sent again only after one second, and then after two.
	makeAgain  = time.Second
	maxMakings = 3
)

// make connects. It takes the first connection that succeeds, or the last error if none does.
func (p *pipeline) make(m *making) {
	ctx, cancel := context.WithCancel(p.node.life)
	type made struct {
		conn *conn
		err  error
	}
	results := make(chan made)
	begin := func() {
		n, err := p.dialer.dial(ctx, p)
		select {
		case results <- made{n, err}:
		case <-ctx.Done(): // another connection was first, or the driver was closed
			if n != nil {
				n.end(redis.ErrClosed)
			}
		}
	}
	go begin()
	again := time.NewTicker(makeAgain)
	defer again.Stop()
	for begun, failed := 1, 0; m.conn == nil && failed < begun && p.node.life.Err() == nil; {
		select {
		case r := <-results:
			if m.conn = r.conn; r.err != nil {
				failed++
				m.err = r.err
			}
		case <-again.C:
			if begun < maxMakings {
				begun++
				go begin()
			}
		case <-p.node.life.Done():
		}
	}
	cancel()
	switch {
	case m.conn != nil:
		m.err = nil
	case p.node.life.Err() != nil:
		m.err = redis.ErrClosed
	}
	p.mu.Lock()
	p.making = nil
	if m.conn != nil && m.conn.live() {
		p.conn = m.conn
	}
	p.mu.Unlock()
	close(m.done)
}

// hold queues c for the next write to the present connection. It returns false, and does not queue
// c, if there is none or it has no room.
func (p *pipeline) hold(c *call) bool {
	p.mu.Lock()
	c.on = p.conn
	p.mu.Unlock()
	if c.on != nil && !c.on.hold(c) {
		c.on = nil
	}
	return c.on != nil
}

// forget is called when n has ended, or when new calls must not use it.
func (p *pipeline) forget(n *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == n {
		p.conn = nil
	}
}

// leave makes the next call connect anew.
func (p *pipeline) leave() {
	p.mu.Lock()
	n := p.conn
	p.mu.Unlock()
	if n != nil {
		n.leave()
	}
}

// pipelines lead to the servers: to the only one, or on Cluster to each node. Calls that replicas
// must acknowledge have pipelines of their own, so that other calls do not wait with them.
type pipelines struct {
	server   dialer // leads to the only server
	replicas int
	voters   *voters              // of a Redlock; nil: a driver by itself
	cluster  *redis.ClusterClient // nil: one server
	known    atomic.Bool          // the cluster has said which node serves which slot
	life     context.Context      // of all connections; ends with the driver
	end      context.CancelFunc
	moved    func() // called when the sentinels have named another primary

	used     sync.Pool // calls that are over, for reuse
	patience patience
	answers  links.Patience

	mu      sync.Mutex
	all     map[place]*pipeline // guarded by mu
	primary string              // guarded by mu; the run id of the server that the last connection leads to; "": unknown
}

// A place identifies a pipeline.
type place struct {
	address string // "": the only server
	waits   bool   // for replicas to acknowledge its calls
}

func (l *pipelines) init(client redis.UniversalClient, options *redis.Options, replicas int) {
	l.replicas, l.all = replicas, make(map[place]*pipeline)
	l.life, l.end = context.WithCancel(context.Background())
	switch c := client.(type) {
	case *redis.ClusterClient:
		l.cluster = c
	case *redis.Client:
		l.server = dialerOf(c, options)
	}
}

// leadTo records the run id of the server that a new connection leads to; "": unknown. If the last
// connection led to another one, it calls moved.
func (l *pipelines) leadTo(id string) {
	l.mu.Lock()
	last := l.primary
	l.primary = id
	l.mu.Unlock()
	if id != "" && last != "" && id != last {
		l.moved()
	}
}

// of returns the pipeline to the server of key. On Cluster the client's knowledge may be outdated;
// a node that does not serve the key says so.
func (l *pipelines) of(ctx context.Context, key string, waits bool) (*pipeline, error) {
	if l.cluster == nil {
		return l.to(place{waits: waits}, l.server), nil
	}
	find := func(ctx context.Context) (*redis.Client, error) { return l.cluster.MasterForKey(ctx, key) }
	var node *redis.Client
	var err error
	if l.known.Load() { // find returns without asking the cluster
		node, err = find(ctx)
	} else {
		node, err = abandonable(ctx, l.life, find)
	}
	if err != nil {
		return nil, err
	}
	l.known.Store(true)
	return l.to(place{node.Options().Addr, waits}, dialer{options: node.Options()}), nil
}

// hold is pipeline.hold for the server of key, if that is known. Call ask afterwards.
func (l *pipelines) hold(ctx context.Context, key string, c *call) bool {
	if l.cluster != nil && !l.known.Load() {
		return false
	}
	p, err := l.of(ctx, key, c.durable && l.replicas > 0)
	return err == nil && p.hold(c)
}

// at returns the pipeline to another node of p's cluster.
func (l *pipelines) at(p *pipeline, address string) *pipeline {
	options := *p.dialer.options
	options.Addr, options.NodeAddress = address, ""
	return l.to(place{address, p.replicas > 0}, dialer{options: &options})
}

func (l *pipelines) to(where place, by dialer) *pipeline {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.all[where]
	if p == nil {
		p = &pipeline{node: l, dialer: by}
		if where.waits {
			p.replicas = l.replicas
		}
		l.all[where] = p
	}
	return p
}

// abandonable calls f, which may ignore its context. It returns when ctx or life ends, even if f
// does not.
func abandonable[T any](ctx, life context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	value, err := abandon.Call(ctx, func() (T, error) { return f(ctx) })
	if err != nil && life.Err() != nil {
		err = redis.ErrClosed
	}
	return value, err
}
