package etcdlock

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// A turn that the watch has told of is taken without a read only while that, and its
// session, are sure. No server can be made to answer a keep-alive of a lease whose end is
// decided.
func TestTurnIsTakenUnreadOnlyWhileItIsSure(t *testing.T) {
	const ttl = 10 * time.Second
	now := time.Now()
	for _, c := range []struct {
		what       string
		change     func(d *Driver, p *place)
		next, sure bool
	}{
		{"found a moment ago", func(*Driver, *place) {}, true, true},
		{"found almost a TTL ago", func(_ *Driver, p *place) { p.found = now.Add(time.Millisecond - ttl) }, true, true},
		{"found a TTL ago", func(_ *Driver, p *place) { p.found = now.Add(-ttl) }, true, false},
		{"kept alive almost too long ago", func(_ *Driver, p *place) { p.sess.sent = now.Add(time.Millisecond - spare) }, true, true},
		{"kept alive too long ago", func(_ *Driver, p *place) { p.sess.sent = now.Add(-spare) }, true, false},
		{"the session is gone", func(_ *Driver, p *place) { p.sess.gone = true }, true, false},
		{"the session is shorter", func(_ *Driver, p *place) { p.sess.ttl = ttl / 2 }, true, false},
		{"it may have moved", func(_ *Driver, p *place) { p.in = append(p.in, newSession(ttl)) }, true, false},
		{"it has not settled", func(_ *Driver, p *place) { p.settled = false }, true, false},
		{"another place has the key", func(d *Driver, p *place) { d.keys[p.key] = new(place) }, true, false},
		{"the watch began anew", func(d *Driver, _ *place) { d.watch.since++ }, false, false},
		{"the watch is deaf", func(d *Driver, _ *place) { d.watch.live = false }, false, false},
		{"it is not its turn", func(_ *Driver, p *place) { p.turn = false }, false, false},
		{"it holds", func(_ *Driver, p *place) { p.held, p.turn = true, false }, true, false},
	} {
		d, err := New(new(clientv3.Client), nil) // which is not used
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(ttl)
		s.sent = now
		d.watch.live = true
		p := &place{
			claim: &claim{d: d, req: driver.Request{TTL: ttl, Queue: true}}, key: "k", sess: s, settled: true, in: []*session{s},
			rev: 5, turn: true, found: now, watchWas: d.watch.since,
		}
		d.keys[p.key] = p
		c.change(d, p)
		if next, sure := p.isNext(now); next != c.next || sure != c.sure {
			t.Errorf("%s: next %t, sure %t; want %t, %t", c.what, next, sure, c.next, c.sure)
		}
	}
}
