package etcdlock

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

const (
	// grantWithin bounds the grant of a session, which continues after its first caller has left.
	grantWithin = 5 * time.Second
	// maxPlaces is how many places share a session: they end together when it is revoked,
	// and the server deletes their keys in one step.
	maxPlaces = 1000
	// maxSpent is how many keys a session may have that must not be used again. Beyond it, new claims
	// get another session, and this one ends with its last place.
	maxSpent = 100
	// spareFrom is the TTL from which a session outlives the TTL of its claims, by spare. A
	// keep-alive of the last second then serves another claim as well. What a dead process held
	// becomes free that much later.
	spareFrom = 5 * time.Second
	spare     = time.Second
)

// A session is a lease of etcd that places of one TTL share. It is kept alive when one of them is
// renewed, so it lives as long as the last of them. The driver deletes the key of a place that was
// not renewed for its TTL, and keeps trying if that fails. When the process ends, so does the
// session.
//
// A lease of etcd for each claim would need no deletion, but a grant for each claim and a
// keep-alive for each lease. Driver.mu guards all fields but the first four.
type session struct {
	ttl   time.Duration    // the TTL of its places
	life  time.Duration    // the TTL of the lease of etcd
	ready chan struct{}    // closed when granted or failed
	id    clientv3.LeaseID // set before ready is closed

	failed error            // why it was not granted
	gone   bool             // the server says that it has no such lease
	sent   boottime.Instant // when the grant, or the last keep-alive with an answer, was sent
	places int              // how many places are in it
	spent  map[string]bool  // keys that must not be reused, including those with a tombstone here
	asked  *keepAlive       // a keep-alive that is not sent yet; nil: none
	stream int              // number of the stream that last kept it alive; 0: it must be searched for strays
}

// errGone means that the server has ended the session, or that the key is gone.
var errGone = errors.New("etcdlock: the lease of etcd has ended or was revoked")

// session returns a session of the TTL for a new place.
func (d *Driver) session(ctx context.Context, ttl time.Duration) (*session, error) {
	ttl = roundUp(ttl)
	d.mu.Lock()
	s := d.sessions[ttl]
	if s == nil || !s.open(d.clock.Now()) {
		s = newSession(ttl, d.clock.Now())
		d.sessions[ttl] = s
		d.life.Go(func() { d.grant(s) })
	}
	d.mu.Unlock()
	if err := d.waitUntil(ctx, s.ready); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return s, s.failed
}

func newSession(ttl time.Duration, now boottime.Instant) *session {
	s := &session{ttl: ttl, life: ttl, ready: make(chan struct{}), spent: make(map[string]bool), sent: now}
	if ttl >= spareFrom {
		s.life += spare
	}
	return s
}

// covers reports whether the session certainly lives for its places' TTL from then on. Requires
// Driver.mu.
func (s *session) covers(start boottime.Instant) bool {
	return !s.gone && s.sent.Add(s.life-s.ttl) > start
}

// open reports whether a session of Driver.sessions accepts new places: it certainly lives and is
// not full. Requires Driver.mu.
func (s *session) open(now boottime.Instant) bool {
	return s.places < maxPlaces && len(s.spent) < maxSpent && now.Sub(s.sent) < s.life*9/10
}

func (d *Driver) grant(s *session) {
	ctx, cancel := context.WithTimeout(d.life, grantWithin)
	defer cancel()
	id, sent, err := d.grantLease(ctx, s.life)
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.failed = err; err == nil {
		s.id, s.sent, s.stream = id, sent, max(d.alive.opened, 1)
	} else {
		d.forgetSession(s)
	}
	close(s.ready)
}

// grantLease makes a lease of etcd. If the answer is lost, the lease has no keys and ends by
// itself.
func (d *Driver) grantLease(ctx context.Context, ttl time.Duration) (id clientv3.LeaseID, sent boottime.Instant, err error) {
	err = d.repeating(ctx, hangAfter, func(ctx context.Context) error {
		sent = d.clock.Now()
		resp, err := d.client.Grant(clientv3.WithRequireLeader(ctx), seconds(ttl))
		if err == nil {
			id = resp.ID
		}
		return d.explain(ctx, err)
	})
	return id, sent, err
}

// forgetSession keeps new places out of s. Requires d.mu.
func (d *Driver) forgetSession(s *session) {
	if d.sessions[s.ttl] == s {
		delete(d.sessions, s.ttl)
	}
}

// lose ends all places of a session that the server no longer knows.
func (d *Driver) lose(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.gone = true
	d.forgetSession(s)
	for _, p := range d.all() {
		if p.unsure.ends(s); p.in == s {
			p.on(lost, errGone)
		}
	}
}
