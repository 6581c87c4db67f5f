package redislock

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/internal/links"
)

// A call is one command on its way to a server. It is sent again only when it was refused unserved,
// or had not left this process.
type call struct {
	script  *script
	count   int    // words of body
	body    []byte // the script's number of keys, keys and arguments; or a command
	whole   bool   // the script goes along: the server has lost it
	asking  bool   // to a node that does not serve the slot yet
	durable bool   // replicas must acknowledge it, if there are to be any
	leaves  leaves // when it leaves a connection that does not answer
	on      *conn  // holds it for the next write; nil: none does

	answer answer
	err    error         // why there is none
	unsent bool          // it did not leave this process
	done   chan struct{} // has room for one, when one of those is set
}

const (
	// A connection on which calls wait and nothing comes is left by those who come after leaveAfter, and
	// ended after endAfter. A script takes microseconds; but a server's disk or a busy machine may hold
	// it up, and what ends then is unknown. endAfter is as go-redis has it for an answer. A server that is
	// far is left after as long as the connection took to make, which is two round trips at least, and
	// after leaveFarAfter at most: else each call would be answered too late for the next.
	leaveAfter, leaveFarAfter = 250 * time.Millisecond, time.Second
	endAfter                  = 5 * time.Second
	// replicaWait is how long to wait for replicas, which on a healthy network answer
	// within a few milliseconds.
	replicaWait = 500 * time.Millisecond
)

// leaves says for how long a call waits for its answer where its context does not end before. It then comes to
// links.ErrSilent: its caller makes another, which goes over the connection that is in use by then.
type leaves uint8

const (
	leavesNever leaves = iota // another call would do harm, or nobody waits for it
	leavesSoon
	leavesLate // another call does not tell what became of it
)

// leaves tells when c has waited for long enough on p; nil: never.
func (p *pipeline) leaves(ctx context.Context, c *call) <-chan time.Time {
	d, bounded := p.answers.ForLate(ctx)
	switch {
	case c.leaves == leavesSoon:
		d = p.answers.For(ctx)
		if c.durable && p.replicas > 0 {
			d += replicaWait
		}
	case c.leaves == leavesNever || !bounded:
		return nil
	}
	return time.After(d)
}

// newCall is a call of s, or of a command that words follow.
func (l *pipelines) newCall(s *script, words ...string) *call {
	c, ok := l.used.Get().(*call)
	if !ok {
		c = &call{done: make(chan struct{}, 1)}
	}
	*c = call{script: s, body: c.body[:0], done: c.done}
	c.texts(words...)
	return c
}

func (c *call) texts(words ...string) {
	for _, w := range words {
		c.body = appendText(c.body, w)
	}
	c.count += len(words)
}

// keys appends the lock key and its companions of those kinds, with their number before them. Of the kinds that each
// owner has it is owner's.
func (c *call) keys(k keys, owner string, kinds ...byte) {
	c.args(1 + len(kinds))
	c.moreKeys(k, owner, kinds...)
}

// moreKeys appends them without their number.
func (c *call) moreKeys(k keys, owner string, kinds ...byte) {
	c.args(k.lock)
	var room [192]byte
	for _, kind := range kinds {
		c.body = appendText(c.body, k.appendKey(room[:0], kind, owner))
	}
	c.count += len(kinds)
}

// args appends texts, numbers, durations in whole milliseconds, and flags, which are 1 or 0.
func (c *call) args(all ...any) {
	for _, arg := range all {
		switch arg := arg.(type) {
		case string:
			c.body = appendText(c.body, arg)
		case int:
			c.body = appendNumber(c.body, int64(arg))
		case int64:
			c.body = appendNumber(c.body, arg)
		case time.Duration:
			c.body = appendNumber(c.body, millis(arg))
		case bool:
			c.body = appendNumber(c.body, flag(arg))
		default:
			panic("redislock: an argument of no such kind")
		}
	}
	c.count += len(all)
}

// appendTo appends c as it goes over the wire.
func (c *call) appendTo(b []byte) []byte {
	if c.asking {
		b = append(b, "*1\r\n$6\r\nASKING\r\n"...)
	}
	switch {
	case c.script == nil:
		b = appendSize(b, '*', c.count)
	case c.whole:
		b = appendText(appendText(appendSize(b, '*', c.count+2), "EVAL"), c.script.load().text)
	default:
		b = appendText(appendText(appendSize(b, '*', c.count+2), "EVALSHA"), c.script.load().sha)
	}
	return append(b, c.body...)
}

// maxRefused is how often a call is refused unserved before the refusal is its answer: a script that
// is lost, and a slot that moves on.
const maxRefused = 5

// ask has c answered by whoever serves key, and if it is to be durable waits for replicas, but not for
// long. It returns when ctx ends: then the outcome is unknown. c is not to be used any more.
func (l *pipelines) ask(ctx context.Context, key string, c *call) (answer, error) {
	p, err := l.of(ctx, key, c.durable && l.replicas > 0)
	if err != nil {
		return answer{}, err
	}
	for tries := 0; ; tries++ {
		left, err := p.ask(ctx, c)
		if left {
			return answer{}, err // c is still on its way
		}
		refused, no := c.answer.reply.(refusal)
		if err == nil && no && tries < maxRefused {
			if next := l.again(p, c, string(refused)); next != nil {
				p = next
				continue
			}
		}
		if err != nil && l.cluster != nil {
			l.cluster.ReloadState(context.Background()) // returns at once; another node may serve now
		}
		a := c.answer
		if c.answer = (answer{}); cap(c.body) <= keptBuffer {
			l.used.Put(c)
		}
		if err == nil && no {
			err = refused
		}
		return a, err
	}
}

// again is where to send c again, which the server has refused; nil: nowhere.
func (l *pipelines) again(p *pipeline, c *call, refused string) *pipeline {
	word, rest, _ := strings.Cut(refused, " ")
	asking := false
	switch word {
	case "NOSCRIPT":
		c.whole = true
		return p
	case "READONLY", "MASTERDOWN", "NOAUTH":
		p.leave() // it is the primary no more, or has ended the user: the next call asks who is
		return nil
	case "CLUSTERDOWN":
		if l.cluster != nil {
			l.cluster.ReloadState(context.Background()) // returns at once; it may be cut off from the others
		}
		return nil
	case "ASK":
		asking = true
	case "MOVED":
	default:
		return nil
	}
	_, said, _ := strings.Cut(rest, " ")
	address := nodeAddress(said, p.dialer.options.Addr)
	if address == "" || l.cluster == nil {
		return nil
	}
	if !asking {
		l.cluster.ReloadState(context.Background()) // returns at once
	}
	c.asking = asking
	return l.at(p, address)
}

// nodeAddress is what a node at the address by has said of another: a host without brackets, and none when
// it is its own.
func nodeAddress(said, by string) string {
	i := strings.LastIndexByte(said, ':')
	if i < 0 {
		return ""
	}
	host, port := strings.Trim(said[:i], "[]"), said[i+1:]
	if host == "" {
		host, _, _ = net.SplitHostPort(by) // "" if that has none: this machine
	}
	return net.JoinHostPort(host, port)
}

// ask sends c, and returns when it is answered, or cannot be. left: ctx has ended before, and
// somebody else will write to c.
func (p *pipeline) ask(ctx context.Context, c *call) (left bool, err error) {
	for range maxUnsent {
		if c.on == nil {
			n, err := p.connection(ctx)
			if err != nil {
				return false, err
			}
			c.err, c.unsent = nil, false
			if err := n.send(ctx, c); errors.Is(err, errEnded) {
				p.forget(n)
				continue // c has not left; the next connection may take it
			} else if err != nil {
				return false, err
			}
		}
		c.on = nil // else it was on its way
		sent := time.Now()
		if !p.patience.answered(ctx, c.done) {
			select {
			case <-c.done:
			case <-ctx.Done():
				return true, ctx.Err()
			case <-p.leaves(ctx, c):
				p.answers.RanOut()
				return true, links.ErrSilent
			}
		}
		if c.err == nil {
			p.answers.Answered(sent)
		}
		if !c.unsent {
			return false, c.err
		}
	}
	return false, errEnded
}

// maxUnsent is on how many connections that end at once a call may wait.
const maxUnsent = 4

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

// closeNow closes conn without the farewell of TLS, which may block.
func closeNow(conn net.Conn) {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn()
	}
	_ = conn.Close() // nothing more comes from it either way
}
