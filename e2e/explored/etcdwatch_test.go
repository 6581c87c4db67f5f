package explored

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A watcher hears of changes in a range from now on.
type watcher struct {
	id         int64
	first, end []byte
	noPut      bool
	send       func(*pb.WatchResponse)
}

// watch begins a watch, and answers with what has changed since its first revision. Requires e.mu.
func (e *etcd) watch(id int64, r *pb.WatchCreateRequest, send func(*pb.WatchResponse)) (*watcher, []*pb.WatchResponse) {
	if r.PrevKv || r.ProgressNotify || r.WatchId != 0 || r.Fragment {
		unknown(r)
	}
	w := &watcher{id: id, first: r.Key, end: r.RangeEnd, send: send}
	for _, f := range r.Filters {
		if f != pb.WatchCreateRequest_NOPUT {
			unknown(r)
		}
		w.noPut = true
	}
	e.watchers = append(e.watchers, w)
	all := []*pb.WatchResponse{{Header: e.header(), WatchId: id, Created: true}}
	since := slices.IndexFunc(e.history, func(change *mvccpb.Event) bool { return change.Kv.ModRevision >= r.StartRevision })
	if r.StartRevision > 0 && since >= 0 {
		if missed := w.of(e.header(), e.history[since:]); len(missed.Events) > 0 {
			all = append(all, missed)
		}
	}
	return w, all
}

// unwatch requires e.mu.
func (e *etcd) unwatch(w *watcher) {
	e.watchers = slices.DeleteFunc(e.watchers, func(o *watcher) bool { return o == w })
}

// of is what w hears of changes, in one message.
func (w *watcher) of(header *pb.ResponseHeader, changes []*mvccpb.Event) *pb.WatchResponse {
	resp := &pb.WatchResponse{Header: header, WatchId: w.id}
	for _, change := range changes {
		if within(change.Kv.Key, w.first, w.end) && !(w.noPut && change.Type == mvccpb.Event_PUT) {
			resp.Events = append(resp.Events, change)
		}
	}
	return resp
}
