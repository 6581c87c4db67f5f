package etcdlock

import (
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A claim that the watch has told is next holds without a read only while that news, and its
// session, are sure. No server can be made to answer a keep-alive of a lease whose end is
// decided.
func TestNextHoldsUnreadOnlyWhileThatIsSure(t *testing.T) {
	const ttl = 10 * time.Second
	now := boottime.Now()
	for _, c := range []struct {
		what       string
		change     func(d *Driver, p *place)
		next, sure bool
	}{
		{"found a moment ago", func(*Driver, *place) {}, true, true},
		{"found almost a TTL ago", func(_ *Driver, p *place) { p.line.from = now.Add(time.Millisecond - ttl) }, true, true},
		{"found a TTL ago", func(_ *Driver, p *place) { p.line.from = now.Add(-ttl) }, true, false},
		{"kept alive almost too long ago", func(_ *Driver, p *place) { p.in.sent = now.Add(time.Millisecond - spare) }, true, true},
		{"kept alive too long ago", func(_ *Driver, p *place) { p.in.sent = now.Add(-spare) }, true, false},
		{"the session is gone", func(_ *Driver, p *place) { p.in.gone = true }, true, false},
		{"the session is shorter", func(_ *Driver, p *place) { p.in.ttl = ttl / 2 }, true, false},
		{"it may have moved", func(_ *Driver, p *place) { awaiting(&p.unsure.moves, newSession(ttl, now)) }, true, false},
		{"others may know its owner", func(_ *Driver, p *place) { p.claim.req.Fresh = false }, true, false},
		{"it was adopted", func(_ *Driver, p *place) { p.in = nil }, true, false},
		{"it was read in another session", func(_ *Driver, p *place) { readIn(p, 99) }, true, false},
		{"the line was read when it was in another session", func(_ *Driver, p *place) { p.line.queue[0].lease = 99 }, true, false},
		{"the line was read before it was there", func(_ *Driver, p *place) { p.rev++ }, false, false},
		{"it was read where it is", func(_ *Driver, p *place) { readIn(p, 31) }, true, true},
		{"the watch began anew", func(d *Driver, _ *place) { d.watch.begun++ }, false, false},
		{"the watch is deaf", func(d *Driver, _ *place) { d.watch.live = false }, false, false},
		{"somebody is ahead", func(_ *Driver, p *place) { p.line.queue = slices.Insert(p.line.queue, 0, entry{key: "a/1", rev: 1}) }, false, false},
		{"it holds", func(_ *Driver, p *place) { p.on(yes, nil) }, true, false},
	} {
		d, p := placeIn(t, queued, driver.Request{TTL: ttl, Fresh: true})
		p.in.sent = now
		d.watch.live = true
		p.line.learn(d.watch.begun, now, look{rev: p.rev, queue: []entry{{key: p.key, rev: p.rev, lease: p.in.id}}})
		c.change(d, p)
		if next, sure := p.isNext(ttl, now); next != c.next || sure != c.sure {
			t.Errorf("%s: next %t, sure %t; want %t, %t", c.what, next, sure, c.next, c.sure)
		}
	}
}

// placeIn is a place in that phase, of a driver that has no server.
func placeIn(t *testing.T, in phase, req driver.Request) (*Driver, *place) {
	t.Helper()
	d, err := New(clientv3.NewCtxClient(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	req.Resource, req.Owner = "a", "owner"
	one := claimtest.New(t, d, req)
	d.mu.Lock()
	defer d.mu.Unlock()
	s := newSession(roundUp(req.TTL), boottime.Now())
	s.id = 31
	d.armed = 1 // no sweeps: they would ask the server
	p := d.newPlace(one.(*claim), s)
	if in > idle {
		p.exists(5)
	}
	if in == held {
		p.on(yes, nil)
	}
	if in == over {
		p.on(lost, errDeleted)
	}
	if in == leaving {
		p.on(release, errReleased)
	}
	return d, p
}

// readIn has p read its key in that lease of etcd.
func readIn(p *place, lease int64) {
	kv := &mvccpb.KeyValue{Key: []byte(p.key), Value: []byte(p.claim.value), CreateRevision: p.rev, Lease: lease}
	p.readQueue(&clientv3.TxnResponse{Responses: []*pb.ResponseOp{{
		Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv}}},
	}}})
}

// The key that a put has just made is known without its value if nobody else has one, and in no other case.
func TestQueueOfOneIsNotDecoded(t *testing.T) {
	kv := func(key string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev, Lease: 31}
	}
	for what, c := range map[string]struct {
		others  []*mvccpb.KeyValue
		made    int64 // revision of the answer
		decoded bool
	}{
		"alone":               {nil, 7, false},
		"with another":        {[]*mvccpb.KeyValue{kv("leasehold/a/1", 3)}, 7, true},
		"made by another put": {nil, 8, true},
	} {
		_, p := placeIn(t, idle, driver.Request{TTL: time.Minute})
		p.exists(c.made)
		read := append(c.others, kv(p.key, 7))
		queue, _ := p.readQueue(&clientv3.TxnResponse{Succeeded: true, Header: &pb.ResponseHeader{Revision: c.made}, Responses: []*pb.ResponseOp{
			{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}}, // no limit
			{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}},
			{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: read}}},
		}})
		if got := queue[len(queue)-1].Owner == ""; got != c.decoded { // there is no value
			t.Errorf("%s: decoded: %t; want %t", what, got, c.decoded)
		}
	}
}
