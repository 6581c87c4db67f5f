package redislock

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/leasehold-go/leasehold/internal/pause"
)

// A dialer makes connections with go-redis: dialing, finding the primary by the sentinels, and
// authenticating follow the same options. After the handshake the connection is used without
// go-redis.
type dialer struct {
	options *redis.Options
	primary *redis.Client // go-redis ends its connections when the sentinels name another primary; nil: no sentinels
}

// sentinelAddr is the address of a go-redis client that asks sentinels for the real one.
const sentinelAddr = "FailoverClient"

func dialerOf(client *redis.Client, options *redis.Options) dialer {
	if client.Options().Addr == sentinelAddr && options.StreamingCredentialsProvider == nil { // with one, go-redis' Conn panics
		return dialer{options, client}
	}
	return dialer{options, nil}
}

// dial makes a connection for p. If the end of ctx cannot stop it, the timeouts of the options do.
func (d dialer) dial(ctx context.Context, p *pipeline) (*conn, error) {
	if err := p.logins.Begin(); err != nil {
		return nil, err
	}
	start := time.Now()
	h := newHandshake(ctx)
	defer context.AfterFunc(ctx, h.hangUp)()
	client := redis.NewClient(h.options(d.options))
	// The Conn is not returned to the pool, where go-redis would use its connection.
	info, err := client.Conn().Info(ctx, "server").Result()
	p.logins.Ended(err, redis.IsAuthError(err))
	server := parseInfo(info)
	switch {
	case err == nil:
		if err = checkVersion(server["redis_version"]); err == nil {
			err = p.node.voters.add(h, voter{p.node, server["run_id"]})
		}
	case redis.IsPermissionError(err): // the version stays unknown; an old server then refuses the scripts
		err = nil
	}
	line := h.line()
	if err == nil && (line == nil || ctx.Err() != nil) {
		err = redis.ErrClosed
	}
	if err != nil {
		p.node.voters.remove(h)
		h.hangUp()
		h.unsubscribe()
		_ = client.Close() // its only error says that it is closed
		return nil, err
	}
	_ = line.SetDeadline(time.Time{}) // go-redis has set a deadline; if this fails, so does what follows
	life, over := context.WithCancel(p.node.life)
	n := newConn(line, time.Since(start), p.replicas, p.forget, func() {
		over()
		p.node.voters.remove(h)
		h.unsubscribe()
		_ = client.Close()
	})
	context.AfterFunc(life, func() { n.end(redis.ErrClosed) })
	context.AfterFunc(h.changed, n.leave)
	if d.primary != nil {
		p.node.leadTo(server["run_id"])
		go d.follow(life, n, server["run_id"], p.node.moved)
	}
	return n, nil
}

// A handshake is a connection while go-redis uses it.
type handshake struct {
	ctx context.Context

	changed context.Context // ends when the credentials have changed since the handshake
	change  context.CancelFunc

	mu   sync.Mutex
	last net.Conn             // guarded by mu; go-redis may dial several times
	stop auth.UnsubscribeFunc // guarded by mu; nil: there is no stream of credentials
}

func newHandshake(ctx context.Context) *handshake {
	h := &handshake{ctx: ctx}
	h.changed, h.change = context.WithCancel(context.WithoutCancel(ctx))
	return h
}

// OnNext implements [auth.CredentialsListener].
func (h *handshake) OnNext(auth.Credentials) { h.change() }

// OnError implements [auth.CredentialsListener]. The connection is kept.
func (*handshake) OnError(error) {}

// subscribe gets the current credentials from a stream, and later changes by OnNext.
func (h *handshake) subscribe(stream auth.StreamingCredentialsProvider) (user, password string, err error) {
	now, stop, err := stream.Subscribe(h)
	if err != nil {
		return "", "", err
	}
	h.mu.Lock()
	h.stop = stop
	h.mu.Unlock()
	user, password = now.BasicAuth()
	return user, password, nil
}

func (h *handshake) unsubscribe() {
	h.mu.Lock()
	stop := h.stop
	h.mu.Unlock()
	if stop != nil {
		_ = stop() // nothing depends on it
	}
}

// options returns the options of a client for one connection.
func (h *handshake) options(of *redis.Options) *redis.Options {
	o := *of
	dial := o.Dialer
	if dial == nil {
		dial = dialWithContext(of)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(h.ctx, cancel)()
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return c, h.made(c)
	}
	if stream := o.StreamingCredentialsProvider; stream != nil {
		o.StreamingCredentialsProvider = nil
		o.CredentialsProviderContext = func(context.Context) (string, string, error) { return h.subscribe(stream) }
	}
	if o.ReadTimeout < 0 {
		o.ReadTimeout = endAfter // a negative timeout would wait forever
	}
	if o.WriteTimeout < 0 {
		o.WriteTimeout = endAfter
	}
	o.Protocol = 2 // RESP2: the server sends nothing but replies
	o.MaxRetries, o.MinIdleConns, o.PoolSize, o.PipelinePoolSize = -1, 0, 1, -1
	o.MaxIdleConns, o.MaxActiveConns, o.MaxConcurrentDials = 0, 0, 0
	o.ReadBufferSize, o.WriteBufferSize = 4<<10, 4<<10
	o.ConnMaxIdleTime, o.ConnMaxLifetime = -1, -1
	o.ContextTimeoutEnabled = false
	o.Limiter, o.ClientSideCache, o.ClientSideCacheConfig, o.PushNotificationProcessor = nil, nil, nil, nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}

// made records c, or closes it if the context has ended.
func (h *handshake) made(c net.Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		closeNow(c)
		return net.ErrClosed
	}
	h.last = c
	return nil
}

func (h *handshake) line() net.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

func (h *handshake) hangUp() {
	if c := h.line(); c != nil {
		closeNow(c)
	}
}

// dialWithContext dials as go-redis would with these options. Its TLS handshake also ends with the
// context, which go-redis' does not.
func dialWithContext(o *redis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	const likeGoRedis = 5 * time.Minute
	plain := &net.Dialer{Timeout: o.DialTimeout, KeepAlive: likeGoRedis} // ctx has the default timeout
	if o.TLSConfig == nil {
		return plain.DialContext
	}
	return (&tls.Dialer{NetDialer: plain, Config: o.TLSConfig}).DialContext
}

// askPrimary is how often to check whether the sentinels have named another primary. The former
// primary may go on serving if the sentinels cannot reach it.
const askPrimary = time.Second

// follow watches a connection of go-redis to the same primary. go-redis ends it when the sentinels
// name another primary. follow then leaves n. It also leaves n, which leads to the server with that
// run id ("": unknown), if they named another while n was made: the watched connection leads there.
// It calls moved then. The subscription may be made at the former primary once more, and n may have
// ended before: leadTo notices another primary in either case.
func (d dialer) follow(life context.Context, n *conn, id string, moved func()) {
	own := d.primary.Conn()
	defer func() { own.Close() }()
	for stands := false; ; {
		ctx, cancel := context.WithTimeout(life, endAfter)
		info, err := own.Info(ctx, "server").Result()
		cancel()
		if life.Err() != nil {
			return
		}
		there := parseInfo(info)["run_id"]
		switch answered := err == nil || redis.IsPermissionError(err) || stands && isReply(err); {
		case stands && !answered, id != "" && there != "" && there != id:
			n.leave()
			moved()
			return
		case answered:
			stands = true
		default: // the pool may have had no connection to give, or the server refused the handshake
			own.Close()
			own = d.primary.Conn()
		}
		if pause.For(life, askPrimary) != nil {
			return
		}
	}
}
