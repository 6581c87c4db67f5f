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

// A call is one command to a server. It is sent again only if the server refused to run it, or if
// it had not left this process.
type call struct {
	script  *script
	count   int    // words of body
	body    []byte // the script's number of keys, keys and arguments; or a command
	whole   bool   // send the script's text, because the server does not have it
	asking  bool   // send ASKING first, because the node does not serve the slot yet
	durable bool   // replicas must acknowledge it, if any must
	leaves  leaves // when it gives up a connection that does not answer
	on      *conn  // the connection on which it waits for the next write; nil: none

	answer answer
	err    error         // why there is no reply
	unsent bool          // it did not leave this process
	done   chan struct{} // has room for one; a value means that answer or err is set
}

const (
	// If calls wait on a connection and nothing comes, new calls use another connection after
	// leaveAfter, and the silent one is ended after endAfter. A script takes microseconds, but a
	// server's disk or a busy machine may delay it, and the outcome of calls on an ended connection
	// is unknown. endAfter is the default read timeout of go-redis.
	//
	// If the server is far away, new calls leave after as long as connecting took, which is two
	// round trips at least, and after leaveFarAfter at most. With less, each call would be answered
	// too late for the next.
	leaveAfter, leaveFarAfter = 250 * time.Millisecond, time.Second
	endAfter                  = 5 * time.Second
	// replicaWait is how long to wait for replicas, which on a healthy network answer
	// within a few milliseconds.
	replicaWait = 500 * time.Millisecond
)

// leaves is for how long a call waits for its answer if its context does not end before. The call
// then fails with links.ErrSilent. Its caller makes another, which uses the connection that is in
// use by then.
type leaves uint8

const (
	leavesNever leaves = iota // another call would do harm, or nobody waits for the answer
	leavesSoon
	leavesLate // another call cannot find out whether this one was served
)

// leaves returns a channel that signals when c has waited long enough on p; nil: it waits for its
// context.
func (p *pipeline) leaves(ctx context.Context, c *call) <-chan time.Time {
	d, bounded := p.node.answers.ForLate(ctx)
	switch {
	case c.leaves == leavesSoon:
		d = p.node.answers.For(ctx)
		if c.durable && p.replicas > 0 {
			d += replicaWait
		}
	case c.leaves == leavesNever || !bounded:
		return nil
	}
	return time.After(d)
}

// newCall returns a call of s. If s is nil, words are a command.
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

// keys appends the number of keys, the lock key and its companions of the kinds. owner counts for
// the kinds of which each owner has a key.
func (c *call) keys(k keys, owner string, kinds ...byte) {
	c.args(1 + len(kinds))
	c.moreKeys(k, owner, kinds...)
}

// moreKeys appends the same keys without their number.
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

// appendTo appends c as it is sent.
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

// maxRefused is how often a call is sent again after a refusal that means that it was not run: the
// script is missing, or the slot has moved. After that, the refusal is its answer.
const maxRefused = 5

// ask sends c to the server of key and returns its answer. If c is durable, it waits for replicas
// too, for replicaWait at most. If ctx ends, ask returns at once, and the outcome is unknown. The
// caller must not use c afterwards.
func (l *pipelines) ask(ctx context.Context, key string, c *call) (answer, error) {
	p, err := l.of(ctx, key, c.durable && l.replicas > 0)
	if err != nil {
		return answer{}, err
	}
	for tries := 0; ; tries++ {
		left, err := p.ask(ctx, c)
		if left {
			return answer{}, err // c is still in flight
		}
		refused, no := c.answer.reply.(refusal)
		if err == nil && no && tries < maxRefused {
			if next := l.again(p, c, string(refused)); next != nil {
				p = next
				continue
			}
		}
		if err != nil && l.cluster != nil {
			l.cluster.ReloadState(context.Background()) // returns at once; another node may serve the key now
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

// again returns where to send c again after the server refused it; nil: nowhere.
func (l *pipelines) again(p *pipeline, c *call, refused string) *pipeline {
	word, rest, _ := strings.Cut(refused, " ")
	switch word {
	case "NOSCRIPT":
		c.whole = true
		return p
	case "READONLY", "MASTERDOWN", "NOAUTH":
		p.leave() // it is no longer the primary, or has logged the user out; the next call connects anew
		return nil
	case "CLUSTERDOWN":
		if l.cluster != nil {
			l.cluster.ReloadState(context.Background()) // returns at once; the node may be cut off from the others
		}
		return nil
	case "ASK", "MOVED":
	default:
		return nil
	}
	_, said, _ := strings.Cut(rest, " ")
	address := nodeAddress(said, p.dialer.options.Addr)
	if address == "" || l.cluster == nil {
		return nil
	}
	if word == "MOVED" {
		l.cluster.ReloadState(context.Background()) // returns at once
	}
	c.asking = word == "ASK"
	return l.at(p, address)
}

// nodeAddress returns the address said, which a node at the address by has named. A host may be in
// brackets; an empty host is the node's own.
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

// ask sends c, and returns when there is an answer or cannot be. left means that ctx has ended or
// the connection is silent, and that another goroutine may still write to c.
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
				continue // c was not sent; the next connection may take it
			} else if err != nil {
				return false, err
			}
		}
		c.on = nil // hold has already queued it
		sent := time.Now()
		if !p.node.patience.answered(ctx, c.done) {
			select {
			case <-c.done:
			case <-ctx.Done():
				return true, ctx.Err()
			case <-p.leaves(ctx, c):
				p.node.answers.RanOut()
				return true, links.ErrSilent
			}
		}
		if c.err == nil {
			p.node.answers.Answered(sent)
		}
		if !c.unsent {
			return false, c.err
		}
	}
	return false, errEnded
}

// maxUnsent is how many connections that end before they send it a call tries.
const maxUnsent = 4

// forItsKeys reports whether the server refused to run a command because of its keys together. The
// user may not use one of them, or they are in different slots of a cluster.
func forItsKeys(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && (strings.HasPrefix(reply.Error(), "NOPERM ") || strings.HasPrefix(reply.Error(), "CROSSSLOT "))
}

// isReply reports whether err is an answer of the server.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// closeNow closes conn without the closing message of TLS, which may block, and drops what has not
// reached the server. Otherwise the kernel could deliver an attempt after the mark that refuses it
// has expired.
func closeNow(conn net.Conn) {
	_ = links.Discard(conn).Close() // nothing more is read, whether it fails or not
}
