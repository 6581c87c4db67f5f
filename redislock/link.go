package redislock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxInFlight bounds the calls on their way at once, and with them the goroutines
	// that a server which does not answer keeps. Calls beyond it go together in one
	// pipeline as soon as one comes back, so that it costs no throughput.
	maxInFlight = 8
	// A link on which nothing has come back for hungAfter may have connections that are
	// dead unnoticed: calls that wait go on others, up to maxHung at once.
	hungAfter = 250 * time.Millisecond
	maxHung   = 64
	// maxBatch bounds a pipeline, so that nobody waits for long behind others.
	maxBatch = 128
	// replicaWait is how long to wait for replicas, which on a healthy network answer
	// within a few milliseconds.
	replicaWait = 500 * time.Millisecond
)

// A link carries calls to the server. go-redis does not end a call when its context
// ends; a link does. Where it has lanes, a call that goes by itself goes on one. Else it
// goes in a goroutine: the caller returns, and the call ends by the client's timeouts.
type link struct {
	client  redis.UniversalClient
	newLane func() *lane  // nil: it has none
	ended   chan struct{} // closed by close; nil: it never is

	mu       sync.Mutex
	inFlight int                // guarded by mu
	hung     int                // guarded by mu; how many in flight are not counted, because as many hang
	waiting  []*call            // guarded by mu; in order
	back     time.Time          // guarded by mu; when a call last came back, or one more was let go
	watched  bool               // guarded by mu; a timer looks whether the link hangs
	closed   bool               // guarded by mu
	idle     []*lane            // guarded by mu
	busy     map[*lane]struct{} // guarded by mu
}

// links are the ways to the server: one, or on Cluster one for each node, so that a node
// which does not answer holds up no other's calls.
type links struct {
	first   *link // for all calls, on Cluster for those about no key
	cluster *redis.ClusterClient
	known   *atomic.Bool // the cluster has told where its slots are

	mu    sync.Mutex
	nodes map[string]*link // guarded by mu; by address
}

func (l *links) init(client redis.UniversalClient, newLane func() *lane, known *atomic.Bool) {
	l.cluster, _ = client.(*redis.ClusterClient)
	l.first = &link{client: client, newLane: newLane, ended: make(chan struct{}), busy: make(map[*lane]struct{})}
	l.known, l.nodes = known, make(map[string]*link)
}

// of is the link to the node that, as far as the client knows, serves key. A slot that has
// moved is followed by the client, on the old link at first.
func (l *links) of(key string) *link {
	if l.cluster == nil || !l.known.Load() { // else the client would ask, and wait for the answer
		return l.first
	}
	node, err := l.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return l.first
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	address := node.Options().Addr
	n := l.nodes[address]
	if n == nil {
		n = &link{client: l.cluster}
		l.nodes[address] = n
	}
	return n
}

// A call is one command on its way.
type call struct {
	ctx    context.Context
	script *script
	cmd    *redis.Cmd
	args   []any // of EVALSHA, as EVAL takes them but for the script
	// replicas must acknowledge it before acknowledged of them are known.
	replicas, acknowledged int
	repeated               bool                        // it was sent more than once, so that it may come again
	asked                  int                         // how often go-redis asked whether to send it again
	other                  func(context.Context) error // in place of a script
	err                    error                       // set when done is closed
	done                   chan struct{}               // closed when cmd has its answer
}

// run has the server run s. It returns when ctx ends: then the outcome is unknown.
func (l *link) run(ctx context.Context, s *script, keys []string, args ...any) (*redis.Cmd, error) {
	return l.send(ctx, l.newCall(ctx, s, keys, args))
}

// An answer is a reply with the number of replicas that have what it tells of.
type answer struct {
	cmd          *redis.Cmd
	acknowledged int
	repeated     bool // the call was sent more than once: a copy may still come
}

// runAcknowledged is run that then waits for that many replicas, but not for long.
func (l *link) runAcknowledged(ctx context.Context, replicas int, s *script, keys []string, args ...any) (answer, error) {
	c := l.newCall(ctx, s, keys, args)
	c.replicas = replicas
	cmd, err := l.send(ctx, c)
	if err != nil {
		return answer{}, err
	}
	return answer{cmd, c.acknowledged, c.repeated}, nil
}

func (l *link) newCall(ctx context.Context, s *script, keys []string, args []any) *call {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.load().sha, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	c := &call{ctx: ctx, script: s, args: all, done: make(chan struct{})}
	c.cmd = redis.NewCmd(ctx, all...)
	c.cmd.SetFirstKeyPos(3)
	return c
}

// send waits for the answer to c, or for the end of its context.
func (l *link) send(ctx context.Context, c *call) (*redis.Cmd, error) {
	l.mu.Lock()
	if l.inFlight < maxInFlight+l.hung {
		l.inFlight++
		if l.newLane != nil && !l.closed && c.other == nil {
			n := l.takeLane()
			l.mu.Unlock()
			l.byLane(n, c)
			return c.cmd, c.err
		}
		go l.carry([]*call{c})
	} else {
		l.waiting = append(l.waiting, c)
		l.watch()
	}
	l.mu.Unlock()
	select {
	case <-c.done:
		return c.cmd, c.err
	case <-ctx.Done():
		l.forsake(c)
		return nil, context.Cause(ctx)
	case <-l.ended: // go-redis may be connecting, which its Close does not end
		l.forsake(c)
		return nil, redis.ErrClosed
	}
}

// forsake has c not sent if it was not yet: nobody waits for it.
func (l *link) forsake(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(o *call) bool { return o == c })
}

// takeLane returns the idle lane that was used last, or a new one. Requires l.mu.
func (l *link) takeLane() *lane {
	var n *lane
	if last := len(l.idle) - 1; last >= 0 {
		n, l.idle = l.idle[last], l.idle[:last]
	} else {
		n = l.newLane()
	}
	l.busy[n] = struct{}{}
	return n
}

// byLane makes c on n, and has what gathered meanwhile carried.
func (l *link) byLane(n *lane, c *call) {
	start := time.Now()
	useful := n.carry(c)
	if batch := l.next(time.Since(start) >= hungAfter); batch != nil {
		go l.carry(batch)
	}
	l.mu.Lock()
	delete(l.busy, n)
	if useful = useful && !l.closed && len(l.idle) < maxInFlight; useful {
		l.idle = append(l.idle, n)
	}
	l.mu.Unlock()
	if !useful {
		n.close()
	}
}

// close ends the lanes, with the calls on their way. It is called once.
func (l *link) close() {
	close(l.ended)
	l.mu.Lock()
	l.closed = true
	all := append(slices.Collect(maps.Keys(l.busy)), l.idle...)
	l.idle = nil
	l.mu.Unlock()
	for _, n := range all {
		n.close()
	}
}

// do makes a call that is no script. It returns when ctx ends: then f goes on by itself
// and must not write to what its caller reads.
func (l *link) do(ctx context.Context, f func(context.Context) error) error {
	c := &call{ctx: ctx, other: f, script: &script{}, done: make(chan struct{})}
	_, err := l.send(ctx, c)
	return err
}

// watch looks, while calls wait, whether the link hangs. Requires l.mu.
func (l *link) watch() {
	if l.watched || len(l.waiting) == 0 {
		return
	}
	l.watched = true
	time.AfterFunc(hungAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.watched = false
		if len(l.waiting) > 0 && l.inFlight < maxHung && time.Since(l.back) >= hungAfter {
			l.hung++
			l.inFlight++
			l.back = time.Now()
			go l.carry(l.gathered())
		}
		l.watch()
	})
}

// carry takes a batch to the server, and then what has gathered meanwhile, until nothing has.
func (l *link) carry(batch []*call) {
	for len(batch) > 0 {
		start := time.Now()
		if len(batch) == 1 {
			batch[0].makeOn(l.client)
		} else {
			l.carryAll(batch)
		}
		for _, c := range batch {
			close(c.done)
		}
		batch = l.next(time.Since(start) >= hungAfter)
	}
}

// next counts its caller out when there is nothing more to carry, or when it hung and
// another took its place.
func (l *link) next(hung bool) []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back = time.Now()
	replaced := hung && l.hung > 0
	if replaced {
		l.hung--
	}
	if len(l.waiting) == 0 || replaced {
		l.inFlight--
		return nil
	}
	return l.gathered()
}

// gathered takes what goes together of the calls that wait. Requires l.mu.
func (l *link) gathered() []*call {
	n := min(len(l.waiting), maxBatch)
	if n == 0 {
		return nil
	}
	if i := slices.IndexFunc(l.waiting[:n], (*call).alone); i >= 0 {
		n = max(i, 1)
	}
	batch := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return batch
}

// makeOn makes c by itself.
func (c *call) makeOn(client redis.UniversalClient) {
	if c.other != nil {
		c.err = c.other(c.ctx)
		return
	}
	if c.replicas > 0 {
		c.carryAcknowledged(client)
		return
	}
	c.err = client.Process(c.ctx, sentCmd{c.cmd, c})
	if noScript(c.err) {
		c.repeated = c.asked > 1 // go-redis asks about each failure, and did so about this one
		c.evalInstead()
		c.err = client.Process(c.ctx, sentCmd{c.cmd, c})
	}
}

// carryAcknowledged sends WAIT on the same connection, which counts the replicas that
// have all that was written there before.
func (c *call) carryAcknowledged(client redis.UniversalClient) {
	for tries := range movedTries {
		node, err := c.nodeOf(client)
		if err != nil {
			c.err = err
			return
		}
		pipe := node.Pipeline()
		_ = pipe.Process(c.ctx, sentCmd{c.cmd, c}) // only queues
		wait := redis.NewIntCmd(c.ctx, "wait", c.replicas, replicaWait.Milliseconds())
		_ = pipe.Process(c.ctx, wait)
		_, _ = pipe.Exec(c.ctx) // each command has its own error
		c.err = c.cmd.Err()
		_, moved := redis.IsMovedError(c.err)
		switch {
		case c.err == nil:
			if c.err = wait.Err(); c.err == nil {
				c.acknowledged = int(wait.Val())
			}
			return
		case noScript(c.err):
			c.evalInstead()
		case moved && reloads(c.ctx, client, tries):
			c.sendAgain()
		default:
			return
		}
	}
}

// nodeOf returns the client of the one server that WAIT is to be sent to as well.
func (c *call) nodeOf(client redis.UniversalClient) (redis.UniversalClient, error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return client, nil
	}
	key, _ := c.args[3].(string)
	return cluster.MasterForKey(c.ctx, key)
}

// movedTries is how often a command is sent to one server of a cluster, which answers that
// the slot has moved, until go-redis, which asks in the background, has heard where to: for
// 0.3 s in all.
const movedTries = 6

// reloads lets a cluster's client ask where the slots are, and returns after a moment: with
// false if ctx has ended, or it is a client of one server.
func reloads(ctx context.Context, client redis.UniversalClient, tries int) bool {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return false
	}
	cluster.ReloadState(ctx)
	select {
	case <-time.After(10 * time.Millisecond << tries):
		return true
	case <-ctx.Done():
		return false
	}
}

// carryAll sends a pipeline. go-redis sends none again of which one command must not be;
// so the others are, once, by themselves.
func (l *link) carryAll(batch []*call) {
	l.pipeline(batch)
	var again []*call
	for _, c := range batch {
		switch {
		case noScript(c.err):
			c.evalInstead()
			again = append(again, c)
		case c.err != nil && !c.script.unrepeatable && !isReply(c.err) && c.ctx.Err() == nil:
			c.repeated = true
			c.sendAgain()
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		l.pipeline(again)
	}
}

func (l *link) pipeline(batch []*call) {
	pipe := l.client.Pipeline()
	for _, c := range batch {
		_ = pipe.Process(c.ctx, sentCmd{c.cmd, c}) // only queues
	}
	// Callers that have gone do not stop the others.
	_, _ = pipe.Exec(context.WithoutCancel(batch[0].ctx)) // each command has its own error
	for _, c := range batch {
		c.err = c.cmd.Err()
	}
}

// alone reports whether c fits into no pipeline.
func (c *call) alone() bool { return c.replicas > 0 || c.other != nil }

// evalInstead replaces the command by one that brings the script along: the server has
// lost it, as it may at any time.
func (c *call) evalInstead() {
	c.args[0], c.args[1] = "eval", c.script.text
	c.sendAgain()
}

// sendAgain replaces the command, which has its answer, by one that has none.
func (c *call) sendAgain() {
	c.cmd = redis.NewCmd(c.ctx, c.args...)
	c.cmd.SetFirstKeyPos(3)
}

// sentCmd is the command of a call, which knows whether go-redis sends it again.
type sentCmd struct {
	*redis.Cmd
	call *call
}

// NoRetry is what go-redis asks after an error, before it sends a command again.
func (s sentCmd) NoRetry() bool {
	if s.call.script.unrepeatable {
		return true
	}
	s.call.asked++
	s.call.repeated = true
	return false
}

func noScript(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT ")
}

// forItsKeys reports whether the server refused to run a command for the keys that it has together:
// the user may not touch one of them, or a server of a cluster has them in two slots.
func forItsKeys(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && (strings.HasPrefix(reply.Error(), "NOPERM ") || strings.HasPrefix(reply.Error(), "CROSSSLOT "))
}

// isReply reports whether err is the server's answer, and not that there was none.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}
