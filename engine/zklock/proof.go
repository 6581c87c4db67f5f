package zklock

import (
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A life is what is known of a session's life. The ensemble counts on while this machine sleeps, and so do its instants.
type life struct {
	id       int64 // 0: there is none
	timeout  time.Duration
	proven   boottime.Instant // when we last asked what the leader answered
	lasts    boottime.Instant // the leader does not end the session before
	contacts []contact        // of this connection, oldest first
}

// A contact is something that a server has answered, by which it knew that the session
// lives.
type contact struct {
	sent  boottime.Instant
	known boottime.Instant // by when the leader knows it too, if it has been heard of since
}

const (
	// carriedAfter is the part of the session after which the leader has been told of a
	// contact: servers report theirs when the leader pings them, every half tick, and a
	// session has at least 2 ticks unless minSessionTimeout is below ZooKeeper's default.
	carriedAfter = 4
	// contactsPerSession bounds how many are kept: those that come sooner after another are
	// not worth a place.
	contactsPerSession = 64
)

// greeted begins with a new connection. The leader itself lets a session go on: it knows of
// this contact, and none of another connection is newer.
func (l *life) greeted(id int64, asked boottime.Instant, shorter bool) {
	if id != l.id || shorter {
		l.proven, l.lasts = 0, 0
	}
	l.id, l.contacts = id, []contact{{sent: asked}}
}

// heard notes a contact, of that session, that was sent at sent and is answered now.
func (s *session) heard(id int64, sent boottime.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := &s.life, s.d.clock.Now()
	last := len(l.contacts) - 1
	if id != l.id || last >= 0 && sent.Sub(l.contacts[last].sent) < l.timeout/contactsPerSession {
		return
	}
	for len(l.contacts) > 1 && now.Sub(l.contacts[1].known) > l.timeout {
		l.contacts = l.contacts[1:]
	}
	l.contacts = append(l.contacts, contact{sent: sent, known: now.Add(l.timeout / carriedAfter)})
}

// prove notes that the leader has answered, in that session, what was asked at asked. It
// keeps the session for its whole timeout after the last contact that it knew of then. Later
// ones it may never hear of, if our server is cut off with us.
func (s *session) prove(id int64, asked boottime.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.life
	if id != l.id {
		return
	}
	l.proven = max(l.proven, asked)
	for _, c := range slices.Backward(l.contacts) {
		if c.known <= asked {
			l.lasts = max(l.lasts, c.sent.Add(l.timeout))
			return
		}
	}
}

// mustHaveExpired reports whether the ensemble was not heard of for longer than the session of that id lasts. All
// leases that hang on it are over. If it is there all the same, all servers were away, maybe to be given the
// data of before: then it has what was released since, which nobody would give up.
func (s *session) mustHaveExpired(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.life
	last := len(l.contacts) - 1
	return id != 0 && id == l.id && last >= 0 && s.d.clock.Now().Sub(l.contacts[last].sent) > l.timeout
}

// A proof is what leases may rely on.
type proof struct {
	session int64
	at      boottime.Instant // the last time that is known to be part of it
	lasts   boottime.Instant // it does not end before
}

func (s *session) proof() proof {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proof{s.life.id, s.life.proven, s.life.lasts}
}

// errDisturbed: something has changed that the caller must look at before it asks again.
var errDisturbed = errors.New("zklock: the node or the connection has changed meanwhile")

// sync asks the leader, through whichever server we are connected to. Its answer proves
// that the session had not ended when it was asked: other servers may not have heard yet. A read
// proves nothing: a server that has lost its leader answers reads for syncLimit ticks, in which
// the leader may end the session and grant to another.
// errDisturbed: it was asked before the watches were there again, so that events from before
// may not have been heard.
func (s *session) sync(client *zk.Conn, path string) error {
	asked := s.d.clock.Now()
	id, greeting, isUp := s.current()
	if !isUp {
		return errDisturbed
	}
	if _, err := client.Sync(path); err != nil {
		return explain(err)
	}
	if _, now, _ := s.current(); now != greeting {
		return errDisturbed
	}
	s.prove(id, asked)
	return nil
}
