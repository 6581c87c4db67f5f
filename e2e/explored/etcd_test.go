package explored

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"
	_ "unsafe" // for neverDone

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestEtcd explores etcdlock, and etcd's client and gRPC below it, over an etcd in memory. With leases of
// five seconds a claim takes its turn without a read.
func TestEtcd(t *testing.T) {
	exploreStandIn(t, overEtcd(t, "etcd's stand-in", 5*time.Second, 0), "two", "shared", "weights", "crowd", "crowds", "recall")
}

// TestLateEtcd explores it over one that deletes what is over when it looks, every half a second.
func TestLateEtcd(t *testing.T) {
	exploreStandIn(t, overEtcd(t, "etcd's stand-in, late", 5*time.Second, time.Second/2), "three")
}

// TestEtcdMoves has leases so long that a claim waits in another session than it holds in.
func TestEtcdMoves(t *testing.T) {
	exploreStandIn(t, overEtcd(t, "etcd's stand-in, 12 s", 12*time.Second, 0), "two")
}

// TestEtcdRecalls has every claim ask for recalls: watches and reads more, and no other answers.
func TestEtcdRecalls(t *testing.T) {
	h := overEtcd(t, "etcd's stand-in, recalls", 5*time.Second, 0)
	begin := h.New
	h.New = func(w *explore.World) func(*explore.Process) driver.Driver {
		open := begin(w)
		return func(p *explore.Process) driver.Driver { return alwaysAsking{open(p).(*etcdlock.Driver)} }
	}
	exploreStandIn(t, h, "two", "shared", "crowd", "crowds")
}

// alwaysAsking has all claims ask for recalls.
type alwaysAsking struct{ *etcdlock.Driver }

func (d alwaysAsking) Claim(req driver.Request) (driver.Claim, error) {
	if req.Wanted == nil {
		req.Wanted = func() {}
	}
	return d.Driver.Claim(req)
}

func overEtcd(t *testing.T, name string, ttl, late time.Duration) explore.Harness {
	known := []string{
		// What is held was moved to a session that was about to end.
		"extend; p1 read 3 answer = lose",
	}
	return explore.Harness{Name: name, TTL: ttl, Known: known, New: func(w *explore.World) func(*explore.Process) driver.Driver {
		e := newEtcd(late)
		w.Cleanup(e.serve())
		w.OnState(e.state)
		w.OnRestart("server", e.restart)
		w.OnRestart("leader", e.elect)
		w.OnForce("delete", false, e.deleteWaiter)
		for n := range int64(3) {
			w.OnForce(fmt.Sprint("revoke ", n+1), true, func() { e.revokeNth(n + 1) })
		}
		return func(p *explore.Process) driver.Driver {
			client := e.client(t, p)
			w.Cleanup(func() { client.Close() })
			d, err := etcdlock.New(client, nil)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}}
}

// neverDone ends no watch of etcd's client: it is the Done of what all of them derive from. As a channel
// that was made outside of a bubble, it would keep those in one from counting as blocked.
//
//go:linkname neverDone go.etcd.io/etcd/client/v3.valCtxCh
var neverDone chan struct{}

func init() { neverDone = nil }

// client is one of etcd's for a process, or for nobody.
func (e *etcd) client(t *testing.T, p *explore.Process) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return e.dial(ctx, p) }),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// queue are the keys of a resource, in order. Requires e.mu.
func (e *etcd) queue(resource string) (kvs []*mvccpb.KeyValue) {
	dir := []byte(etcdlock.DefaultPrefix + "/" + resource + "/")
	for _, kv := range e.keys {
		if within(kv.Key, dir, []byte(clientv3.GetPrefixRangeEnd(string(dir)))) {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	return kvs
}

// holding is how many of the keys of a resource hold. Requires e.mu.
func (e *etcd) holding(resource string, kvs []*mvccpb.KeyValue) int {
	names, claims := make([]string, len(kvs)), make([]queue.Claim, len(kvs))
	for i, kv := range kvs {
		names[i], claims[i] = fmt.Sprintf("%s %d", kv.Key, kv.CreateRevision), e.about(kv).claim()
	}
	return e.granted.holding(names, claims, e.limit(resource))
}

// limit is what an operator has set for a resource; 0: nothing. Requires e.mu.
func (e *etcd) limit(resource string) int {
	for _, kv := range e.queue("///" + resource) {
		if most := e.about(kv).Limit; most > 0 {
			return most
		}
	}
	return 0
}

// state is who has a key of a resource, in order.
func (e *etcd) state(resource string) driver.State {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, kvs := driver.State{Resource: resource}, e.queue(resource)
	state.Limit = e.limit(resource)
	holding := e.holding(resource, kvs)
	for i, kv := range kvs {
		a, c := e.about(kv), e.about(kv).claim()
		if i < holding {
			state.Holders = append(state.Holders, driver.Holder{
				Owner: driver.OwnerOf(a.Owner), Mode: c.Mode, Limit: c.Limit, Weight: c.Weight, Left: time.Until(e.leases[kv.Lease].ends),
			})
		} else {
			state.Waiters = append(state.Waiters, driver.Waiter{Owner: driver.OwnerOf(a.Owner), Mode: c.Mode, Weight: c.Weight})
		}
	}
	return state
}

// An aboutClaim is what a key says of its claim.
type aboutClaim struct {
	Owner  string
	Shared bool
	Limit  int
	weight int // which the key ends by; 0: none
}

// about reads it. Requires e.mu.
func (e *etcd) about(kv *mvccpb.KeyValue) aboutClaim {
	a, known := e.abouts[kv]
	if !known {
		if err := json.Unmarshal(kv.Value, &a); err != nil {
			panic(err)
		}
		_, weight, _ := bytes.Cut(kv.Key[bytes.LastIndexByte(kv.Key, '/'):], []byte("w"))
		a.weight, _ = strconv.Atoi(string(weight))
		e.abouts[kv] = a
	}
	return a
}

func (a aboutClaim) claim() queue.Claim {
	c := queue.Claim{Limit: a.Limit, Weight: a.weight}
	if a.Shared || a.weight > 0 {
		c.Mode = driver.Shared
	}
	return c
}
