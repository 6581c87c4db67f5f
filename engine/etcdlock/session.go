package etcdlock

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/internal/boottime"
)

const (
	// grantWithin bounds the grant of a session, which goes on when its first caller left.
	grantWithin = 5 * time.Second
	// maxPlaces is how many places share a session: they end together when it is revoked,
	// and the server deletes their keys in one step.
	maxPlaces = 1000
	// maxTombstones is how many tombstones a session keeps, and how many keys the driver
	// knows not to use again. Then new claims get another session, and both end with the last
	// place of this one.
	maxTombstones = 100
	// spareFrom is the TTL from which on a session lives longer than the TTL of its claims,
	// by spare: a keep-alive of the last second then serves for another claim as well. What
	// a dead process held is free that much later.
	spareFrom = 5 * time.Second
	spare     = time.Second
)

// A session is a lease of etcd that places of one TTL share. It is kept alive when one of
// them is renewed, and so lives for as long as the last of them. One that was not renewed
// for its TTL is deleted by the driver; should that fail, the driver goes on trying, and
// when the process ends, the session ends. A lease of etcd for each claim would need no deletion,
// but a grant for each claim and a keep-alive for each lease. All fields but the first four are
// guarded by Driver.mu.
type session struct {
	ttl   time.Duration    // of its places
	life  time.Duration    // of the lease of etcd
	ready chan struct{}    // closed when granted or failed
	id    clientv3.LeaseID // set before ready is closed

	failed     error            // why it was not granted
	gone       bool             // the server says that it has no such lease
	sent       boottime.Instant // of the grant or the last keep-alive that was answered
	places     int              // in it
	tombstones int
	spent      map[string]bool // keys that are not to be used again
	asked      *keepAlive      // that is not sent yet
	stream     int             // number of that it was kept alive over; 0: it is to be looked through
}

// errGone says that the server has ended the session, or that the key is gone.
var errGone = errors.New("etcdlock: the lease of etcd has ended or was revoked")

// session returns a session of the TTL in which a new place may be.
func (d *Driver) session(ctx context.Context, ttl time.Duration) (*session, error) {
	ttl = roundUp(ttl)
	d.mu.Lock()
	s := d.sessions[ttl]
	if s == nil || !s.open(d.clock.Now()) {
		s = newSession(ttl, d.clock.Now())
		d.sessions[ttl] = s
		d.start(func() { d.grant(s) })
	}
	d.mu.Unlock()
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, d.explain(ctx, ctx.Err())
	case <-d.life.Done():
		return nil, errClosing
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

// covers reports whether the session lives for its places' TTL from then on, for sure.
// Requires Driver.mu.
func (s *session) covers(start boottime.Instant) bool {
	return !s.gone && s.sent.Add(s.life-s.ttl) > start
}

// open reports whether new places may be in it: it lives for sure, and is not full.
// Requires Driver.mu.
func (s *session) open(now boottime.Instant) bool {
	return !s.gone && s.failed == nil &&
		s.places < maxPlaces && s.tombstones < maxTombstones && len(s.spent) < maxTombstones &&
		now.Sub(s.sent) < s.life*9/10
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

// grantLease makes a lease of etcd. A grant whose answer is lost leaves one without keys,
// which ends by itself.
func (d *Driver) grantLease(ctx context.Context, ttl time.Duration) (id clientv3.LeaseID, sent boottime.Instant, err error) {
	err = d.passingOver(ctx, func(ctx context.Context) error {
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

// lose ends all places of a session that the server does not know any more.
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
