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

// A pipeline is the way to one server: a connection, made when it is needed, and made anew when it
// has ended.
type pipeline struct {
	dialer   dialer
	replicas int             // that must acknowledge what goes here
	life     context.Context // of its connections
	patience *patience       // of all
	answers  *links.Patience // of all
	logins   storeurl.Logins

	mu     sync.Mutex
	conn   *conn   // guarded by mu; nil: there is none
	making *making // guarded by mu; nil: nobody makes one
}

// A making is a connection that is being made, for all who wait for it.
type making struct {
	done chan struct{}
	conn *conn // set when done is closed, or err
	err  error
}

// connection returns the one that there is, or waits for one to be made. An error: there is none,
// or ctx has ended.
func (p *pipeline) connection(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	if n := p.conn; n != nil {
		p.mu.Unlock()
		return n, nil
	}
	m := p.making
	if m == nil {
		if p.life.Err() != nil {
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
	// A connection that takes longer than this is made once more beside it, up to maxMakings at
	// once: a packet that was lost is sent again only after one second, and then two.
	makeAgain  = time.Second
	maxMakings = 3
)

// make makes a connection: the first that stands, or the last error when none does.
func (p *pipeline) make(m *making) {
	ctx, cancel := context.WithCancel(p.life)
	type made struct {
		conn *conn
		err  error
	}
	results := make(chan made)
	begin := func() {
		n, err := p.dialer.dial(ctx, p)
		select {
		case results <- made{n, err}:
		case <-ctx.Done(): // there is another, or there is to be none any more
			if n != nil {
				n.end(redis.ErrClosed)
			}
		}
	}
	go begin()
	again := time.NewTicker(makeAgain)
	defer again.Stop()
	for begun, failed := 1, 0; m.conn == nil && failed < begun && p.life.Err() == nil; {
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
		case <-p.life.Done():
		}
	}
	cancel()
	switch {
	case m.conn != nil:
		m.err = nil
	case p.life.Err() != nil:
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

// hold queues c on the connection that there is, for the next write to it. It reports false, and c
// was not queued, if there is none that takes it.
func (p *pipeline) hold(c *call) bool {
	p.mu.Lock()
	c.on = p.conn
	p.mu.Unlock()
	if c.on != nil && !c.on.hold(c) {
		c.on = nil
	}
	return c.on != nil
}

// forget is told when a connection has ended, or is of no use for others.
func (p *pipeline) forget(n *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == n {
		p.conn = nil
	}
}

// leave has the next call connect anew.
func (p *pipeline) leave() {
	p.mu.Lock()
	n := p.conn
	p.mu.Unlock()
	if n != nil {
		n.leave()
	}
}

// pipelines are the ways to the servers: one, or on Cluster one for each node. Calls that replicas must
// acknowledge have ways of their own, where no others wait with them.
type pipelines struct {
	server   dialer // of the one server
	replicas int
	cluster  *redis.ClusterClient // nil: one server
	known    atomic.Bool          // the cluster has told where its slots are
	life     context.Context      // of all connections; ends with the driver
	end      context.CancelFunc

	used     sync.Pool // of calls that are over
	patience patience
	answers  links.Patience

	mu  sync.Mutex
	all map[place]*pipeline // guarded by mu
}

// A place is what a pipeline goes to.
type place struct {
	address string // "": the one server
	waits   bool   // for replicas
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

// of is the pipeline to the server of key: as far as the client knows, if it is of a cluster. A
// server that serves it no more says so.
func (l *pipelines) of(ctx context.Context, key string, waits bool) (*pipeline, error) {
	if l.cluster == nil {
		return l.to(place{waits: waits}, l.server), nil
	}
	find := func(ctx context.Context) (*redis.Client, error) { return l.cluster.MasterForKey(ctx, key) }
	var node *redis.Client
	var err error
	if l.known.Load() { // it does not ask, then
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

// hold is pipeline.hold at whoever serves key, as far as that is known. ask must follow.
func (l *pipelines) hold(ctx context.Context, key string, c *call) bool {
	if l.cluster != nil && !l.known.Load() {
		return false
	}
	p, err := l.of(ctx, key, c.durable && l.replicas > 0)
	return err == nil && p.hold(c)
}

// at is the pipeline to another node of p's cluster.
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
		p = &pipeline{dialer: by, life: l.life, patience: &l.patience, answers: &l.answers}
		if where.waits {
			p.replicas = l.replicas
		}
		l.all[where] = p
	}
	return p
}

// abandonable calls f, which may take no notice of the end of its context. It returns when that or life ends.
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
