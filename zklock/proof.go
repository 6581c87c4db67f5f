package zklock

import (
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// A contact is something that a server has answered, by which it knew that the session
// lives.
type contact struct {
	sent  time.Time
	known time.Time // by when the leader knows it too, if it has been heard of since
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

// heardAt notes a contact, which is answered now.
func (l *link) heardAt(session int64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.contacts) - 1
	if session != l.session || last >= 0 && sent.Sub(l.contacts[last].sent) < l.timeout/contactsPerSession {
		return
	}
	now := time.Now()
	for len(l.contacts) > 1 && now.Sub(l.contacts[1].known) > l.timeout {
		l.contacts = l.contacts[1:]
	}
	l.contacts = append(l.contacts, contact{sent: sent, known: now.Add(l.timeout / carriedAfter)})
}

// prove notes that the leader has answered, in that session, what was asked at asked. It
// keeps the session for its whole timeout after the last contact that it knew of then. Later
// ones it may never hear of, if our server is cut off with us.
func (l *link) prove(session int64, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if session != l.session {
		return
	}
	if asked.After(l.proven) {
		l.proven = asked
	}
	for _, c := range slices.Backward(l.contacts) {
		if !c.known.After(asked) {
			if lasts := c.sent.Add(l.timeout); lasts.After(l.lasts) {
				l.lasts = lasts
			}
			return
		}
	}
}

// A proof is what is known of a session's life.
type proof struct {
	session int64
	at      time.Time // the last time that is known to be part of it
	lasts   time.Time // it does not end before
}

// proof is that of the present session.
func (l *link) proof() proof {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proof{l.session, l.proven, l.lasts}
}

// errDisturbed: something has changed that the caller must look at before it asks again.
var errDisturbed = errors.New("zklock: the node or the connection has changed meanwhile")

// sync asks the leader, through whichever server we are connected to. Its answer proves
// that the session had not ended when it was asked: other servers may not have heard yet.
// errDisturbed: it was asked before the watches were there again, so that events from before
// may not have been heard.
func (l *link) sync(conn *zk.Conn, path string) error {
	asked := time.Now()
	session, greeting, isUp := l.connection()
	if !isUp {
		return errDisturbed
	}
	if _, err := conn.Sync(path); err != nil {
		return explain(err)
	}
	if _, now, _ := l.connection(); now != greeting {
		return errDisturbed
	}
	l.prove(session, asked)
	return nil
}

func (l *link) connection() (session int64, greeting int, isUp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session, l.greetings, l.state == up
}
