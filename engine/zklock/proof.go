package zklock

import (
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

// A life is what is known about how long a session lives. Its instants count the machine's sleep,
// as the ensemble does.
type life struct {
	id       int64            // 0: there is no session
	proven   boottime.Instant // when the last question was asked that the leader has answered
	lasts    boottime.Instant // the leader does not end the session before this
	contacts []contact        // of this connection, oldest first
}

// A contact is a request that a server has answered. By it the server knew that the session lives.
type contact struct {
	sent  boottime.Instant
	known boottime.Instant // by when the leader knows of it too, if that server has told it
}

const (
	// carriedAfter is the part of the session's timeout within which the leader learns of a
	// contact. Servers report contacts when the leader pings them, every half tick. A session has
	// at least 2 ticks, unless minSessionTimeout is below ZooKeeper's default.
	carriedAfter = 4
	// contactsPerSession bounds how many contacts are kept. A contact that follows another more
	// closely is dropped.
	contactsPerSession = 64
)

// greeted begins a new connection. The leader itself has let the session continue, so it knows of
// this contact. No contact of an earlier connection is newer.
func (l *life) greeted(id int64, asked boottime.Instant, shorter bool) {
	if id != l.id || shorter {
		l.proven, l.lasts = 0, 0
	}
	l.id, l.contacts = id, []contact{{sent: asked}}
}

// heard records a contact of session id: it was sent at sent and is answered now.
func (s *session) heard(id int64, sent boottime.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := &s.life, s.d.clock.Now()
	last := len(l.contacts) - 1
	if id != l.id || last >= 0 && sent.Sub(l.contacts[last].sent) < s.timeout/contactsPerSession {
		return
	}
	for len(l.contacts) > 1 && now.Sub(l.contacts[1].known) > s.timeout {
		l.contacts = l.contacts[1:]
	}
	l.contacts = append(l.contacts, contact{sent: sent, known: now.Add(s.timeout / carriedAfter)})
}

// prove records that the leader has answered, in session id, a question asked at asked. The leader
// keeps the session for its whole timeout after the last contact that it knew of then. It may never
// learn of later contacts, if our server is cut off together with us.
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
			l.lasts = max(l.lasts, c.sent.Add(s.timeout))
			return
		}
	}
}

// mustHaveExpired reports whether there was no contact with the ensemble for longer than the
// timeout of session id. All leases of the session are over. If the session still exists, all
// servers were away, perhaps to be restored from a backup. It then has nodes again that were
// released since, which nobody would give up.
func (s *session) mustHaveExpired(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.life
	last := len(l.contacts) - 1
	return id != 0 && id == l.id && last >= 0 && s.d.clock.Now().Sub(l.contacts[last].sent) > s.timeout
}

// A proof is how long a session is known to live. Leases rely on it.
type proof struct {
	session int64
	at      boottime.Instant // the session was alive at this time
	lasts   boottime.Instant // the session does not end before this
}

func (s *session) proof() proof {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proof{s.life.id, s.life.proven, s.life.lasts}
}

// errDisturbed means that something has changed, and that the caller must look at it before it asks
// again.
var errDisturbed = errors.New("zklock: the node or the connection has changed meanwhile")

// sync asks the leader, through the connected server. Its answer proves that the session had not
// ended when it was asked, even if other servers lag behind. A read proves nothing. A server that
// has lost its leader answers reads for syncLimit ticks, and meanwhile the leader may end the
// session and grant the lock to another.
//
// errDisturbed means that the watches were not yet set again when it was asked, so that earlier
// events may have been missed.
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
