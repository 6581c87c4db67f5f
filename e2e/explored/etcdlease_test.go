package explored

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// minLease is the shortest lease that a server grants, in seconds.
const minLease = 2

// An elease is a lease. At its end it is decided that its keys go, which they do a little later.
type elease struct {
	id, ttl int64
	ends    time.Time
	timer   *time.Timer
	ended   bool          // it is not kept alive any more
	goes    *time.Timer   // nil: it is not decided that its keys go
	over    chan struct{} // closed when they are gone
}

func (l *elease) span() time.Duration { return time.Duration(l.ttl) * time.Second }

// grant requires e.mu.
func (e *etcd) grant(r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	id := r.ID
	if id == 0 {
		e.lastLease++
		id = e.lastLease
	}
	if e.leases[id] != nil {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := &elease{id: id, ttl: max(r.TTL, minLease), over: make(chan struct{})}
	e.leases[id] = l
	l.timer = time.AfterFunc(l.span(), func() { e.end(l) })
	l.ends = time.Now().Add(l.span())
	return &pb.LeaseGrantResponse{Header: e.header(), ID: id, TTL: l.ttl}, nil
}

// end is when l may end.
func (e *etcd) end(l *elease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leases[l.id] != l || l.ended || time.Now().Before(l.ends) {
		return
	}
	if e.late == 0 {
		e.revoke(l)
		return
	}
	l.ended = true
	if l.goes != nil {
		return
	}
	l.goes = time.AfterFunc(e.late, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.leases[l.id] == l {
			e.revoke(l)
		}
	})
}

// elect gives the server a new leader: each lease begins anew, also one of which it was decided that its keys go, as
// they then do.
func (e *etcd) elect() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.leases {
		l.ended = false
		e.prolong(l)
	}
}

// restart has the server begin anew, and so be elected: connections break.
func (e *etcd) restart() {
	e.elect()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.plugs {
		x.breaks()
	}
}

// revokeNth has somebody revoke the lease that was granted so manieth, as "etcdctl lease revoke" does.
func (e *etcd) revokeNth(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.leases[n]; l != nil {
		e.revoke(l)
	}
}

// deleteWaiter has somebody delete the key of who waits longest, as "etcdctl del" does.
func (e *etcd) deleteWaiter() {
	e.mu.Lock()
	defer e.mu.Unlock()
	kvs := e.queue("x")
	if n := e.holding("x", kvs); n < len(kvs) {
		before := len(e.history)
		e.delete(kvs[n].Key, nil, e.rev+1)
		e.tell(before)
	}
}

// revokeNow requires e.mu.
func (e *etcd) revokeNow(r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	l := e.leases[r.ID]
	if l == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	e.revoke(l)
	return &pb.LeaseRevokeResponse{Header: e.header()}, nil
}

// revoke deletes the keys of a lease, at one revision. Requires e.mu.
func (e *etcd) revoke(l *elease) {
	l.stop()
	delete(e.leases, l.id)
	before, rev := len(e.history), e.rev+1
	for _, kv := range slices.Clone(e.keys) {
		if kv.Lease == l.id {
			e.change(&mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: rev}})
		}
	}
	e.tell(before)
}

func (l *elease) stop() {
	l.timer.Stop()
	if l.goes != nil {
		l.goes.Stop()
	}
	close(l.over)
}

// keepAlive answers when it is known whether the lease lives on.
func (e *etcd) keepAlive(r *pb.LeaseKeepAliveRequest) *pb.LeaseKeepAliveResponse {
	e.mu.Lock()
	resp := &pb.LeaseKeepAliveResponse{Header: e.header(), ID: r.ID}
	l := e.leases[r.ID]
	if l != nil && !l.ended {
		e.prolong(l)
		resp.TTL = l.ttl
	}
	ended := l != nil && l.ended
	e.mu.Unlock()
	if ended {
		<-l.over
	}
	return resp
}

// prolong requires e.mu.
func (e *etcd) prolong(l *elease) {
	l.ends = time.Now().Add(l.span())
	l.timer.Reset(l.span())
}

// timeToLive requires e.mu.
func (e *etcd) timeToLive(r *pb.LeaseTimeToLiveRequest) *pb.LeaseTimeToLiveResponse {
	resp := &pb.LeaseTimeToLiveResponse{Header: e.header(), ID: r.ID, TTL: -1}
	if l := e.leases[r.ID]; l != nil {
		resp.TTL, resp.GrantedTTL = int64(time.Until(l.ends).Seconds()), l.ttl
		for _, kv := range e.keys {
			if r.Keys && kv.Lease == r.ID {
				resp.Keys = append(resp.Keys, kv.Key)
			}
		}
	}
	return resp
}

// close ends what may still happen.
func (e *etcd) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.leases {
		l.stop()
	}
	clear(e.leases)
}
