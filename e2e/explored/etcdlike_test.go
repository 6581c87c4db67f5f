package explored

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// TestEtcdIsLikeEtcd makes the same calls on a real etcd and on the stand-in. What both answer, and the
// events that they tell, are the same, with all revisions.
func TestEtcdIsLikeEtcd(t *testing.T) {
	real, err := clientv3.New(clientv3.Config{Endpoints: servers.Endpoints(servers.StartEtcd(t, servers.EtcdCurrent)), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { real.Close() })
	e := newEtcd(0)
	t.Cleanup(e.serve())
	stands := e.client(t, nil)
	t.Cleanup(func() { stands.Close() })
	alike(t, "etcd", etcdStory(t, real), etcdStory(t, stands))
}

// A caller makes calls on an etcd that has nothing yet, and writes down what comes of them.
type caller struct {
	t      *testing.T
	ctx    context.Context
	c      *clientv3.Client
	leases []clientv3.LeaseID // which are told by their places
	lines  []string
}

func etcdStory(t *testing.T, c *clientv3.Client) []string {
	s := &caller{t: t, ctx: t.Context(), c: c}
	s.values()
	s.ranges()
	s.comparisons()
	s.leased()
	s.watched()
	s.revoked()
	s.missed()
	s.expired()
	return s.lines
}

func (s *caller) tell(what string, values ...any) {
	s.lines = append(s.lines, what+": "+fmt.Sprint(values...))
}

// kvs writes keys down.
func (s *caller) kvs(kvs []*mvccpb.KeyValue) (text string) {
	for _, kv := range kvs {
		text += fmt.Sprintf(" %q=%q {created %d, changed %d, version %d, lease %d}", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version, s.number(kv.Lease))
	}
	return text
}

// number is the place of a lease.
func (s *caller) number(lease int64) int {
	for i, id := range s.leases {
		if int64(id) == lease {
			return i + 1
		}
	}
	return 0
}

// txn makes a transaction.
func (s *caller) txn(what string, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) {
	resp, err := s.c.Txn(s.ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		s.tell(what, err)
		return
	}
	line := fmt.Sprint(resp.Succeeded, " at ", resp.Header.Revision)
	for _, r := range resp.Responses {
		switch r := r.Response.(type) {
		case *pb.ResponseOp_ResponsePut:
			line += fmt.Sprint(", put at ", r.ResponsePut.Header.Revision)
		case *pb.ResponseOp_ResponseDeleteRange:
			line += fmt.Sprintf(", deleted %d at %d", r.ResponseDeleteRange.Deleted, r.ResponseDeleteRange.Header.Revision)
		case *pb.ResponseOp_ResponseRange:
			line += fmt.Sprint(", read ", r.ResponseRange.Count, r.ResponseRange.More, s.kvs(r.ResponseRange.Kvs))
		}
	}
	s.tell(what, line)
}

// remove deletes without a transaction.
func (s *caller) remove(what, key string) {
	resp, err := s.c.Delete(s.ctx, key)
	if err != nil {
		s.tell(what, err)
		return
	}
	s.tell(what, fmt.Sprintf("deleted %d at %d", resp.Deleted, resp.Header.Revision))
}

func ops(all ...clientv3.Op) []clientv3.Op    { return all }
func cmps(all ...clientv3.Cmp) []clientv3.Cmp { return all }

func below(dir string) clientv3.Op { return clientv3.OpGet(dir, clientv3.WithPrefix()) }

func (s *caller) values() {
	s.txn("nothing", nil, ops(below("")), nil)
	s.txn("put", nil, ops(clientv3.OpPut("a/1", "x")), nil)
	s.txn("two", nil, ops(clientv3.OpPut("a/2", "y"), clientv3.OpPut("b/1", "z"), below("a/")), nil)
	s.txn("again", nil, ops(clientv3.OpPut("a/1", "xx")), nil)
	s.txn("put and delete", nil, ops(clientv3.OpDelete("a/2"), clientv3.OpPut("a/3", ""), below("a/")), nil)
	s.txn("delete nothing", nil, ops(clientv3.OpDelete("a/2")), nil)
	s.remove("delete alone", "a/3")
	s.remove("delete nothing alone", "a/3")
	s.txn("and back", nil, ops(clientv3.OpPut("a/3", "")), nil)
	s.txn("anew", nil, ops(clientv3.OpPut("a/2", "new")), nil)
	s.txn("delete some", nil, ops(clientv3.OpDelete("b/", clientv3.WithPrefix())), nil)
	s.txn("the lease of nothing", nil, ops(clientv3.OpPut("b/1", "x", clientv3.WithIgnoreLease())), nil)
	s.txn("no such lease", nil, ops(clientv3.OpPut("b/2", "x"), clientv3.OpPut("b/1", "x", clientv3.WithLease(77))), nil)
	s.txn("nor anything", nil, ops(below("b/")), nil)
}

func (s *caller) ranges() {
	for _, r := range []struct {
		what string
		key  string
		opts []clientv3.OpOption
	}{
		{"one", "a/1", nil},
		{"none", "a/9", nil},
		{"all", "\x00", []clientv3.OpOption{clientv3.WithRange("\x00")}},
		{"some", "a/1", []clientv3.OpOption{clientv3.WithRange("a/3")}},
		{"from", "a/2", []clientv3.OpOption{clientv3.WithFromKey()}},
		{"count", "a/", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCountOnly()}},
		{"limit", "a/", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(2)}},
		{"limit of all", "a/", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(3)}},
		{"older", "a/", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMaxCreateRev(5)}},
		{"before", "a/", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(3)}},
		{"one before", "a/2", []clientv3.OpOption{clientv3.WithRev(5), clientv3.WithSerializable()}},
		{"in future", "a/2", []clientv3.OpOption{clientv3.WithRev(1000)}},
	} {
		resp, err := s.c.Get(s.ctx, r.key, r.opts...)
		if err != nil {
			s.tell(r.what, err)
			continue
		}
		s.tell(r.what, resp.Header.Revision, resp.Count, resp.More, s.kvs(resp.Kvs))
	}
}

func (s *caller) comparisons() {
	created, changed := clientv3.CreateRevision, clientv3.ModRevision
	for what, c := range []clientv3.Cmp{
		clientv3.Compare(created("a/1"), "=", 2), clientv3.Compare(created("a/1"), "=", 3), clientv3.Compare(created("none"), "=", 0),
		clientv3.Compare(created("none"), ">", 0), clientv3.Compare(changed("a/1"), "<", 5), clientv3.Compare(changed("a/1"), "!=", 4),
		clientv3.Compare(created("a/").WithPrefix(), "=", 0), clientv3.Compare(created("none/").WithPrefix(), "=", 0),
		clientv3.Compare(changed("a/").WithPrefix(), "<", 7), clientv3.Compare(changed("a/").WithPrefix(), "<", 100),
		clientv3.Compare(clientv3.LeaseValue("a/1"), "=", 0), clientv3.Compare(clientv3.LeaseValue("a/1"), "=", 5), clientv3.Compare(clientv3.LeaseValue("none"), "=", 0),
	} {
		s.txn(fmt.Sprint("comparison ", what), cmps(c), ops(clientv3.OpGet("a/1", clientv3.WithCountOnly())), ops(below("a/")))
	}
	s.txn("all of several", cmps(clientv3.Compare(created("a/1"), "=", 2), clientv3.Compare(created("a/2"), "=", 1)), ops(clientv3.OpPut("c", "")), nil)
	s.txn("alone", cmps(clientv3.Compare(created("a/1"), "=", 2)), nil, nil)
	s.txn("otherwise", cmps(clientv3.Compare(created("a/1"), "=", 1)), nil, ops(clientv3.OpPut("c", "otherwise")))
}

// grant grants a lease for so many seconds.
func (s *caller) grant(seconds int64) clientv3.LeaseID {
	resp, err := s.c.Grant(s.ctx, seconds)
	if err != nil {
		s.t.Fatal(err)
	}
	s.leases = append(s.leases, resp.ID)
	s.tell("grant", seconds, " ", resp.TTL)
	return resp.ID
}

// left asks for the time that a lease has, which is not told exactly.
func (s *caller) left(what string, id clientv3.LeaseID) {
	resp, err := s.c.TimeToLive(s.ctx, id, clientv3.WithAttachedKeys())
	if err != nil {
		s.tell(what, err)
		return
	}
	keys := make([]string, len(resp.Keys))
	for i, key := range resp.Keys {
		keys[i] = string(key)
	}
	slices.Sort(keys)
	s.tell(what, resp.TTL > 0, resp.TTL < 0, resp.TTL <= resp.GrantedTTL, " ", resp.GrantedTTL, " ", keys)
}

func (s *caller) keep(what string, id clientv3.LeaseID) {
	resp, err := s.c.KeepAliveOnce(s.ctx, id)
	if err != nil {
		s.tell(what, err)
		return
	}
	s.tell(what, resp.TTL)
}

func (s *caller) leased() {
	one, two := s.grant(60), s.grant(90)
	s.left("left", one)
	s.left("of another", 77)
	s.keep("keep", one)
	s.keep("another", 77)
	s.txn("under one", nil, ops(clientv3.OpPut("l/1", "x", clientv3.WithLease(one)), clientv3.OpPut("l/2", "x", clientv3.WithLease(one)), below("l/")), nil)
	s.txn("moved", cmps(clientv3.Compare(clientv3.LeaseValue("l/2"), "=", one)), ops(clientv3.OpPut("l/2", "y", clientv3.WithLease(two)), below("l/")), nil)
	s.txn("stays", nil, ops(clientv3.OpPut("l/2", "z", clientv3.WithIgnoreLease()), below("l/")), nil)
	s.txn("under none", nil, ops(clientv3.OpPut("l/1", "w"), below("l/")), nil)
	s.txn("back", nil, ops(clientv3.OpPut("l/1", "w", clientv3.WithLease(one)), clientv3.OpPut("l/3", "w", clientv3.WithLease(one))), nil)
	s.txn("keys", nil, ops(clientv3.OpGet("l/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2))), nil)
	s.grant(1)
}

// watch begins a watch, and returns when it is there.
func (s *caller) watch(ctx context.Context, what string, opts ...clientv3.OpOption) clientv3.WatchChan {
	from := s.c.Watch(ctx, "l/", append(opts, clientv3.WithPrefix(), clientv3.WithCreatedNotify())...)
	s.hears(what, from)
	return from
}

// hears waits for a message.
func (s *caller) hears(what string, from clientv3.WatchChan) {
	select {
	case m, ok := <-from:
		line := fmt.Sprint(ok, m.Created, m.Canceled, " at ", m.Header.GetRevision())
		for _, e := range m.Events {
			line += fmt.Sprint(" ", e.Type, s.kvs([]*mvccpb.KeyValue{e.Kv}))
		}
		s.tell(what, line)
	case <-time.After(30 * time.Second):
		s.t.Errorf("%s: no event", what)
	}
}

func (s *caller) watched() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	all, deletions := s.watch(ctx, "all"), s.watch(ctx, "deletions", clientv3.WithFilterPut())
	s.txn("elsewhere", nil, ops(clientv3.OpPut("m/1", "x")), nil)
	s.txn("changes", nil, ops(clientv3.OpPut("l/4", "x"), clientv3.OpDelete("l/3"), clientv3.OpPut("m/2", "x")), nil)
	s.hears("all", all)
	s.hears("deletions", deletions)
	s.txn("put", nil, ops(clientv3.OpPut("l/3", "x", clientv3.WithLease(s.leases[0]))), nil)
	s.hears("all", all)
	s.txn("deleted", nil, ops(clientv3.OpDelete("l/4")), nil)
	s.hears("all", all)
	s.hears("deletions", deletions)
}

// revoked: all keys of a lease go at once.
func (s *caller) revoked() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	all := s.watch(ctx, "watch")
	_, err := s.c.Revoke(s.ctx, s.leases[0])
	s.tell("revoke", err)
	s.hears("gone", all)
	_, err = s.c.Revoke(s.ctx, s.leases[0])
	s.tell("revoke again", err)
	s.left("left", s.leases[0])
	s.keep("keep", s.leases[0])
	s.txn("under it", nil, ops(clientv3.OpPut("l/1", "x", clientv3.WithLease(s.leases[0]))), nil)
	s.txn("what is left", nil, ops(below("l/")), nil)
	_, err = s.c.Revoke(s.ctx, s.leases[2])
	s.tell("revoke what has no key", err)
	s.txn("and then", nil, ops(below("l/")), nil)
	cancel()
	if _, ok := <-all; ok {
		s.tell("more", "after the end")
	}
}

// missed: a watch hears what has changed since a revision.
func (s *caller) missed() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.txn("change", nil, ops(clientv3.OpPut("l/5", "x")), nil)
	s.txn("change", nil, ops(clientv3.OpDelete("l/5")), nil)
	resp, err := s.c.Get(s.ctx, "l/5")
	if err != nil {
		s.t.Fatal(err)
	}
	from := s.watch(ctx, "since", clientv3.WithRev(resp.Header.Revision-1))
	s.hears("missed", from)
	s.txn("change", nil, ops(clientv3.OpPut("l/6", "x")), nil)
	s.hears("not missed", from)
}

// expired: a lease that nobody keeps ends with its keys.
func (s *caller) expired() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	id := s.grant(2)
	s.txn("put", nil, ops(clientv3.OpPut("l/7", "x", clientv3.WithLease(id)), clientv3.OpPut("l/8", "x", clientv3.WithLease(id))), nil)
	from := s.watch(ctx, "watch")
	s.hears("expired", from)
	s.left("left", id)
	s.keep("keep", id)
	s.txn("what is left", nil, ops(below("l/")), nil)
}
