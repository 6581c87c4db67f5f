package explored

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
)

// An etcd stands in for one etcd server: keys and their revisions, transactions, leases, watches, written
// from etcd's documentation of them and compared with a real one by TestEtcdIsLikeEtcd. It has no
// members, users, quota or compaction, and refuses what it does not know.
type etcd struct {
	late time.Duration // how long after a lease's end its keys are deleted

	mu        sync.Mutex
	rev       int64                           // guarded by mu; of the last change
	keys      []*mvccpb.KeyValue              // guarded by mu, in order; an element is replaced, not changed
	history   []*mvccpb.Event                 // guarded by mu; all changes
	leases    map[int64]*elease               // guarded by mu
	lastLease int64                           // guarded by mu
	watchers  []*watcher                      // guarded by mu, in the order in which they began
	plugs     []*plug                         // guarded by mu
	abouts    map[*mvccpb.KeyValue]aboutClaim // guarded by mu; what was read of keys
	granted   granted                         // guarded by mu
	doors     *doors
}

func newEtcd(late time.Duration) *etcd {
	return &etcd{late: late, rev: 1, leases: make(map[int64]*elease), abouts: make(map[*mvccpb.KeyValue]aboutClaim), granted: make(granted), doors: newDoors()}
}

// header requires e.mu.
func (e *etcd) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 1, MemberId: 1, Revision: e.rev, RaftTerm: 1}
}

// unknown is for what the stand-in does not have.
func unknown(what any) { panic(fmt.Sprint("the stand-in for etcd does not know ", what)) }

// within reports whether key is in the range that begins at first.
func within(key, first, end []byte) bool {
	switch {
	case len(end) == 0:
		return bytes.Equal(key, first)
	case bytes.Equal(end, []byte{0}):
		return bytes.Compare(key, first) >= 0
	}
	return bytes.Compare(key, first) >= 0 && bytes.Compare(key, end) < 0
}

// indexOf is where key is among kvs, or belongs.
func indexOf(kvs []*mvccpb.KeyValue, key []byte) (int, bool) {
	return slices.BinarySearchFunc(kvs, key, func(kv *mvccpb.KeyValue, key []byte) int { return bytes.Compare(kv.Key, key) })
}

// get is the value of a key, nil: it is not there. Requires e.mu.
func (e *etcd) get(key []byte) *mvccpb.KeyValue {
	if i, ok := indexOf(e.keys, key); ok {
		return e.keys[i]
	}
	return nil
}

// applied is kvs after a change.
func applied(kvs []*mvccpb.KeyValue, change *mvccpb.Event) []*mvccpb.KeyValue {
	i, ok := indexOf(kvs, change.Kv.Key)
	switch {
	case change.Type == mvccpb.Event_DELETE:
		return slices.Delete(kvs, i, i+1)
	case ok:
		kvs[i] = change.Kv
		return kvs
	}
	return slices.Insert(kvs, i, change.Kv)
}

// as are the keys as they were at a revision. Requires e.mu.
func (e *etcd) as(rev int64) (kvs []*mvccpb.KeyValue) {
	for _, change := range e.history {
		if change.Kv.ModRevision > rev {
			break
		}
		kvs = applied(kvs, change)
	}
	return kvs
}

// read serves a range. Requires e.mu.
func (e *etcd) read(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	known := &pb.RangeRequest{
		Key: r.Key, RangeEnd: r.RangeEnd, Limit: r.Limit, Revision: r.Revision, Serializable: r.Serializable,
		CountOnly: r.CountOnly, KeysOnly: r.KeysOnly, MaxCreateRevision: r.MaxCreateRevision,
	}
	if !proto.Equal(r, known) {
		unknown(r)
	}
	kvs := e.keys
	if r.Revision > e.rev {
		return nil, rpctypes.ErrGRPCFutureRev
	} else if r.Revision > 0 {
		kvs = e.as(r.Revision)
	}
	resp := &pb.RangeResponse{Header: e.header()}
	for _, kv := range kvs {
		if !within(kv.Key, r.Key, r.RangeEnd) {
			continue
		}
		resp.Count++
		if !r.CountOnly && (r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision) {
			if r.KeysOnly {
				kv = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
			}
			resp.Kvs = append(resp.Kvs, kv)
		}
	}
	if n := int(r.Limit); n > 0 && n < len(resp.Kvs) {
		resp.Kvs, resp.More = resp.Kvs[:n], true
	}
	return resp, nil
}

// txn serves a transaction: all that follows from its comparisons, at one revision. Requires e.mu.
func (e *etcd) txn(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	succeeded := true
	for _, c := range r.Compare {
		succeeded = succeeded && e.compare(c)
	}
	ops := r.Success
	if !succeeded {
		ops = r.Failure
	}
	if err := e.may(ops); err != nil {
		return nil, err
	}
	before := len(e.history)
	resp := &pb.TxnResponse{Succeeded: succeeded}
	next := e.rev + 1
	for _, op := range ops {
		answer, err := e.do(op, next)
		if err != nil {
			return nil, err
		}
		resp.Responses = append(resp.Responses, answer)
	}
	e.tell(before)
	resp.Header = e.header()
	return resp, nil
}

// tell tells the watchers what has changed since the history was so long. Requires e.mu.
func (e *etcd) tell(before int) {
	changes := e.history[before:]
	if len(changes) == 0 {
		return
	}
	e.rev = changes[0].Kv.ModRevision
	for _, name := range resources {
		e.holding(name, e.queue(name))
	}
	for _, w := range e.watchers {
		if heard := w.of(e.header(), changes); len(heard.Events) > 0 {
			w.send(heard)
		}
	}
}

// may refuses a transaction as a whole, before anything is done. Requires e.mu.
func (e *etcd) may(ops []*pb.RequestOp) error {
	for _, op := range ops {
		put := op.GetRequestPut()
		switch {
		case put == nil:
		case put.PrevKv || put.IgnoreValue:
			unknown(put)
		case put.IgnoreLease && e.get(put.Key) == nil:
			return rpctypes.ErrGRPCKeyNotFound
		case put.Lease != 0 && e.leases[put.Lease] == nil:
			return rpctypes.ErrGRPCLeaseNotFound
		}
	}
	return nil
}

// do does one operation, as of revision rev. Requires e.mu.
func (e *etcd) do(op *pb.RequestOp, rev int64) (*pb.ResponseOp, error) {
	switch r := op.Request.(type) {
	case *pb.RequestOp_RequestPut:
		e.put(r.RequestPut, rev)
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: &pb.ResponseHeader{Revision: rev}}}}, nil
	case *pb.RequestOp_RequestDeleteRange:
		n := e.delete(r.RequestDeleteRange.Key, r.RequestDeleteRange.RangeEnd, rev)
		if len(e.history) == 0 || e.history[len(e.history)-1].Kv.ModRevision < rev { // nothing has changed so far
			rev = e.rev
		}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{Revision: rev}, Deleted: n}}}, nil
	case *pb.RequestOp_RequestRange:
		resp, err := e.read(r.RequestRange)
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: resp}}, err
	}
	unknown(op)
	return nil, nil
}

// put requires e.mu.
func (e *etcd) put(r *pb.PutRequest, rev int64) {
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, CreateRevision: rev, ModRevision: rev, Version: 1, Lease: r.Lease}
	if was := e.get(r.Key); was != nil {
		kv.CreateRevision, kv.Version = was.CreateRevision, was.Version+1
		if r.IgnoreLease {
			kv.Lease = was.Lease
		}
	}
	e.change(&mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv})
}

// delete requires e.mu.
func (e *etcd) delete(first, end []byte, rev int64) (n int64) {
	for _, kv := range slices.Clone(e.keys) {
		if within(kv.Key, first, end) {
			e.change(&mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: rev}})
			n++
		}
	}
	return n
}

// change requires e.mu.
func (e *etcd) change(change *mvccpb.Event) {
	e.keys = applied(e.keys, change)
	e.history = append(e.history, change)
}

// compare reports whether c holds of all keys that it names; of one that is not there, all is zero. Requires e.mu.
func (e *etcd) compare(c *pb.Compare) bool {
	holds, some := true, false
	for _, kv := range e.keys {
		if within(kv.Key, c.Key, c.RangeEnd) {
			holds, some = holds && compareOne(c, kv), true
		}
	}
	return holds && (some || compareOne(c, &mvccpb.KeyValue{}))
}

func compareOne(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var order int
	switch c.Target {
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	default:
		unknown(c)
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_LESS:
		return order < 0
	case pb.Compare_GREATER:
		return order > 0
	}
	return order != 0
}
