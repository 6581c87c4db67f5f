package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// joined counts the requests that carry several transactions.
func (p *tap) joined() *atomic.Int64 {
	var n atomic.Int64
	count := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		if several(req) {
			n.Add(1)
		}
		return send(ctx)
	}
	p.txn.Store(&count)
	return &n
}

// untilJoined calls storm until several of its writes have gone together, which a busy machine may have them not do.
func untilJoined(t *testing.T, joined *atomic.Int64, storm func(round int)) {
	t.Helper()
	const most = 100
	for round := 0; round == 0 || joined.Load() == 0; round++ {
		if round == most {
			t.Fatalf("no request carried several transactions in %d storms", most)
		}
		storm(round)
	}
}

// several reports whether req writes keys of several resources.
func several(req *pb.TxnRequest) bool {
	dirs := make(map[string]bool)
	for _, op := range req.Success {
		if put := op.GetRequestPut(); put != nil {
			dirs[path.Dir(string(put.Key))] = true
		}
		if del := op.GetRequestDeleteRange(); del != nil {
			dirs[path.Dir(string(del.Key))] = true
		}
	}
	return len(dirs) > 1
}

// The writes that goroutines of one process send at the same moment go together. Each gets what
// it would get alone; what two of them get of one resource differs in its fence.
func TestBatchesAnswerEachWrite(t *testing.T) {
	t.Parallel()
	const goroutines, cycles, names, limit = 64, 5, 40, 20 * time.Second
	for _, version := range []string{servers.EtcdDebian, servers.EtcdCurrent} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var taps tap
			e := servers.StartEtcd(t, version)
			client := taps.client(t, e)
			useNamespace(client, "space/")
			joined := taps.joined()
			d := driverOn(t, client, nil)
			var mu sync.Mutex
			fences := make(map[string]map[uint64]bool)
			held := make([]atomic.Int32, names)
			untilJoined(t, joined, func(round int) {
				var all sync.WaitGroup
				for g := range goroutines {
					all.Go(func() {
						for i := range cycles {
							n := g % names // some are wanted by two
							name := fmt.Sprint("a", n)
							c := claimOf(t, d, driver.Request{Resource: name, Owner: fmt.Sprint(round, "/", g, "/", i), TTL: limit, Queue: g%3 == 0})
							var grant driver.Grant
							err := within(t, limit, func(ctx context.Context) (err error) { grant, err = c.Try(ctx); return err })
							if err == nil {
								if held[n].Add(1) != 1 {
									t.Errorf("%s has two holders", name)
								}
								mu.Lock()
								if fences[name] == nil {
									fences[name] = make(map[uint64]bool)
								}
								if fences[name][grant.Fence] {
									t.Errorf("fence %d of %s was given twice", grant.Fence, name)
								}
								fences[name][grant.Fence] = true
								mu.Unlock()
								held[n].Add(-1)
							} else if !errors.Is(err, driver.ErrBusy) {
								t.Errorf("Try: %v", err)
							}
							if gone := released(t, c, limit); gone != nil && (err == nil || !errors.Is(gone, driver.ErrLost)) {
								t.Errorf("Release after %v: %v", err, gone)
							}
						}
					})
				}
				all.Wait()
			})
			// Tombstones may be there: on a busy machine a put may have no answer for a while.
			resp, err := clientOf(t, e).Get(t.Context(), "space/leasehold/a", clientv3.WithPrefix())
			if err != nil || len(resp.Kvs) > 0 {
				t.Errorf("left behind: %v, %v", resp.Kvs, err)
			}
		})
	}
}

// One write that the server refuses does not harm those that it went with, nor their session.
func TestBatchWithAWriteOfARevokedSession(t *testing.T) {
	t.Parallel()
	const goroutines, ttl = 32, 20 * time.Second
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	direct := clientOf(t, e)
	var taps tap
	joined := taps.joined()
	counting := *taps.txn.Load()
	d := driverOn(t, taps.client(t, e), nil)
	kept := claimOf(t, d, driver.Request{Resource: "kept", Owner: "k", TTL: ttl + time.Second, Lost: func(cause error) { t.Errorf("a lease of the other session: %v", cause) }})
	if err := within(t, ttl, tryOf(kept)); err != nil {
		t.Fatal(err)
	}
	for round := 0; joined.Load() == 0; round++ {
		// Two sessions, one of which is revoked when the puts of both are on their way.
		var sessions []clientv3.LeaseID
		for i, name := range []string{"short", "long"} {
			c := claimOf(t, d, driver.Request{Resource: name, Owner: name, TTL: ttl + time.Duration(i)*time.Second})
			if err := within(t, ttl, tryOf(c)); err != nil {
				t.Fatal(err)
			}
			_, leases := keysOf(t, direct, name)
			sessions = append(sessions, clientv3.LeaseID(leases[0]))
			if err := released(t, c, ttl); err != nil {
				t.Fatal(err)
			}
		}
		var once sync.Once
		revoke := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
			once.Do(func() {
				if _, err := direct.Revoke(ctx, sessions[0]); err != nil {
					t.Error(err)
				}
			})
			return counting(req, ctx, send)
		}
		taps.txn.Store(&revoke)
		var all sync.WaitGroup
		for g := range goroutines {
			c := claimOf(t, d, driver.Request{Resource: fmt.Sprint("a", g), Owner: fmt.Sprint("o", g), TTL: ttl + time.Duration(g%2)*time.Second})
			all.Go(func() {
				if err := within(t, ttl, tryOf(c)); err != nil {
					t.Errorf("Try: %v", err)
				}
				if err := released(t, c, ttl); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
		all.Wait()
		taps.txn.Store(&counting)
		if round == 100 {
			t.Fatal("no request carried several transactions")
		}
	}
	if err := released(t, kept, ttl); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A server whose quota ends with a request serves it and says that there is no space. What
// it has served is neither left behind nor taken for somebody else's.
func TestBatchesServedWithoutSpace(t *testing.T) {
	t.Parallel()
	const goroutines, cycles, limit = 32, 10, 20 * time.Second
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, taps.client(t, e), nil)
	var alone, joined atomic.Int64
	full := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		err := send(ctx)
		n := &alone
		if several(req) {
			n = &joined
		}
		if n.Add(1)%4 == 0 {
			return rpctypes.ErrGRPCNoSpace
		}
		return err
	}
	taps.txn.Store(&full)
	untilJoined(t, &joined, func(round int) {
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for i := range cycles {
					c := claimOf(t, d, driver.Request{Resource: fmt.Sprint("a", g), Owner: fmt.Sprint(round, "/", g, "/", i), TTL: limit})
					err := within(t, limit, tryOf(c))
					if err != nil && !errors.Is(err, etcdlock.ErrNoSpace) {
						t.Errorf("Try: %v", err)
					}
					gone := within(t, limit, claimtest.Release(c))
					if err == nil && errors.Is(gone, driver.ErrLost) {
						t.Errorf("Release of a grant: %v; want yes or unknown", gone)
					}
					for gone != nil && !errors.Is(gone, driver.ErrLost) {
						gone = within(t, limit, claimtest.Release(c))
					}
				}
			})
		}
		all.Wait()
	})
	resp, err := clientOf(t, e).Get(t.Context(), etcdlock.DefaultPrefix+"/a", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) > 0 {
		t.Errorf("left behind: %v, %v", resp.Kvs, err)
	}
}

// A write that is too large, which the client refuses itself, harms nobody that it would have gone
// with.
func TestBatchWithAWriteThatIsTooLarge(t *testing.T) {
	t.Parallel()
	const goroutines, limit = 32, 20 * time.Second
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d := driverOn(t, taps.client(t, e), nil)
	large := strings.Repeat("x", 3<<20)
	var beside atomic.Int64
	look := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		big := func(op *pb.RequestOp) bool { return len(op.GetRequestPut().GetValue()) > len(large) }
		if several(req) && slices.ContainsFunc(req.Success, big) {
			beside.Add(1)
		}
		return send(ctx)
	}
	taps.txn.Store(&look)
	unknown := make([]atomic.Bool, goroutines) // whether a call was repeated for want of an answer
	for round := 0; beside.Load() == 0; round++ {
		var all sync.WaitGroup
		for g := range goroutines {
			req := driver.Request{Resource: fmt.Sprint("a", g), Owner: fmt.Sprint(g, "/", round), TTL: limit}
			if g == goroutines/2 {
				req.Note = large
			}
			c := claimOf(t, d, req)
			all.Go(func() {
				start := time.Now()
				if err := within(t, limit, tryOf(c)); (err != nil) != (req.Note != "") {
					t.Errorf("Try with a note of %d bytes: %v", len(req.Note), err)
				}
				_ = released(t, c, limit)
				if time.Since(start) >= etcdlock.HangAfter {
					unknown[g].Store(true)
				}
			})
		}
		all.Wait()
		if round == 100 {
			t.Fatal("no request was too large for several transactions")
		}
	}
	resp, err := clientOf(t, e).Get(t.Context(), etcdlock.DefaultPrefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		// A tombstone, which keeps out a put that may still arrive, lasts as long as its session.
		var g int
		if _, err := fmt.Sscanf(string(kv.Key), etcdlock.DefaultPrefix+"//a%d/", &g); err != nil || !unknown[g].Load() {
			t.Errorf("left behind, although all outcomes were known: %s", kv.Key)
		}
	}
}

// A write for a name that was taken goes alone: all that went with it would have to be sent
// again.
func TestWritesForATakenNameGoAlone(t *testing.T) {
	t.Parallel()
	const goroutines, cycles, limit = 32, 20, 20 * time.Second
	var taps tap
	e := servers.StartEtcd(t, servers.EtcdCurrent)
	d, other := driverOn(t, taps.client(t, e), nil), driverOn(t, clientOf(t, e), nil)
	if err := within(t, limit, tryOf(claimOf(t, other, driver.Request{Resource: "taken", Owner: "holder", TTL: limit}))); err != nil {
		t.Fatal(err)
	}
	try := func(name, owner string) error {
		c := claimOf(t, d, driver.Request{Resource: name, Owner: owner, TTL: limit})
		err := within(t, limit, tryOf(c))
		if err == nil {
			err = released(t, c, limit)
		}
		return err
	}
	if err := try("taken", "first"); !errors.Is(err, driver.ErrBusy) {
		t.Fatalf("Try of what another driver holds: %v; want busy", err)
	}
	var joined, with atomic.Int64
	look := func(req *pb.TxnRequest, ctx context.Context, send func(context.Context) error) error {
		puts := func(op *pb.RequestOp) bool {
			return path.Dir(string(op.GetRequestPut().GetKey())) == etcdlock.DefaultPrefix+"/taken"
		}
		if several(req) {
			joined.Add(1)
			if slices.ContainsFunc(req.Success, puts) {
				with.Add(1)
			}
		}
		return send(ctx)
	}
	taps.txn.Store(&look)
	untilJoined(t, &joined, func(round int) {
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for i := range cycles {
					name, owner, want := fmt.Sprint("a", g), fmt.Sprint(round, "/", g, "/", i), error(nil)
					if g%8 == 0 {
						name, want = "taken", driver.ErrBusy
					}
					if err := try(name, owner); !errors.Is(err, want) {
						t.Errorf("Try of %s: %v; want %v", name, err, want)
					}
				}
			})
		}
		all.Wait()
	})
	if with.Load() > 0 {
		t.Errorf("of %d requests that carried several transactions %d had one for the taken name", joined.Load(), with.Load())
	}
}
