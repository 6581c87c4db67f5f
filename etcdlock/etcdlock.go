package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// DefaultPrefix is what all keys of the driver begin with.
const DefaultPrefix = "leasehold"

const (
	// minTTL is the shortest lease of a server with its default settings: one and a half
	// election timeouts of a second, rounded up (etcd's lease.Lessor). Servers that have
	// a longer one keep what dead processes held for longer.
	minTTL = 2 * time.Second
	// step is the unit in which etcd grants leases.
	step = time.Second
)

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// Prefix is what all keys begin with, before a slash; "": DefaultPrefix. All processes
	// must use the same. It does not end in a slash and has no control character. To
	// exclude the holders of "etcdctl lock /locks/backup", it is "/locks".
	Prefix string
	// NoPrefix puts names at the root of the key space; Prefix must be "". The driver then
	// hears of every key that is deleted in the cluster.
	NoPrefix bool
}

// A Driver serves claims on etcd. It is safe for concurrent use.
type Driver struct {
	client *clientv3.Client
	root   string             // Prefix and a slash, or ""
	life   context.Context    // ends with Close
	end    context.CancelFunc // ends life
	work   sync.WaitGroup     // goroutines of the driver
	seen   atomic.Int64       // the largest revision in an answer

	mu       sync.Mutex
	closed   bool                // guarded by mu
	keys     map[string]*place   // guarded by mu; that have them, by key
	sessions map[int64]*session  // guarded by mu; for new claims, by TTL in seconds
	pulse    pulse               // guarded by mu
	watch    watch               // guarded by mu
	errands  []*errand           // guarded by mu; about to be sent
	taken    map[string]struct{} // guarded by mu; dirs that others had when last wanted free
}

// New returns a Driver on client, which stays the caller's: Close does not close it. It
// does no I/O. A client with a namespace has its prefix before that of the Driver.
func New(client *clientv3.Client, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	switch {
	case client == nil:
		return nil, errors.New("etcdlock: no client")
	case o.NoPrefix && o.Prefix != "":
		return nil, errors.New("etcdlock: Prefix and NoPrefix exclude each other")
	case strings.HasSuffix(o.Prefix, "/"):
		return nil, fmt.Errorf("etcdlock: the prefix %q ends in a slash, which the driver adds", o.Prefix)
	case strings.ContainsFunc(o.Prefix, unicode.IsControl):
		return nil, fmt.Errorf("etcdlock: control character in the prefix %q", o.Prefix)
	case o.Prefix == "" && !o.NoPrefix:
		o.Prefix = DefaultPrefix
	}
	d := &Driver{client: client, sessions: make(map[int64]*session), keys: make(map[string]*place), taken: make(map[string]struct{})}
	if !o.NoPrefix {
		d.root = o.Prefix + "/"
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.pulse.init()
	d.watch.init()
	return d, nil
}

// Features declares everything. TTLs are whole seconds.
func (d *Driver) Features() driver.Features {
	return driver.Features{
		Fencing: true, Shared: true, Fair: true, Wakes: true, Resumes: true,
		MinTTL: minTTL, Step: step,
	}
}

// Close ends the driver's watch and the keep-alives of its sessions. Later calls return
// driver.ErrClosed. What is held stays held until its TTL is over.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
	d.work.Wait()
	return nil
}

// Claim never fails for a request that the core has checked.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.Owner == "" {
		return nil, fmt.Errorf("etcdlock: an empty owner is %w", driver.ErrUnsupported)
	}
	return &claim{d: d, req: req, dir: d.dir(req.Resource), value: encode(&req)}, nil
}

// usable is the check that stands before every call.
func (d *Driver) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return driver.ErrClosed
	}
	return nil
}

// start runs f in a goroutine that Close waits for. Requires d.mu.
func (d *Driver) start(f func()) {
	if !d.closed {
		d.work.Go(f)
	}
}

// hangAfter is how long a member may take to answer before what can be repeated is sent
// again, which then goes to another member. It doubles each time.
const hangAfter = time.Second

// electing is the first pause before a call that failed so is made again. It doubles.
const electing = 100 * time.Millisecond

// commit sends one transaction, of reads also: the client repeats other reads by itself.
func (d *Driver) commit(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	seen := d.seen.Load()
	resp, err := d.client.Txn(undated{clientv3.WithRequireLeader(ctx)}).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, d.explain(ctx, err)
	}
	if resp.Header.Revision < seen {
		d.rewatch() // it waits for revisions that the server has forgotten
	}
	d.saw(resp.Header.Revision)
	return resp, nil
}

// commitAgain is commit of what does no harm when it is served twice.
func (d *Driver) commitAgain(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = d.passingOver(ctx, func(ctx context.Context, _ bool) (err error) {
		resp, err = d.commit(ctx, cmps, then, otherwise)
		return err
	})
	return resp, err
}

// runAgain is run of such an errand. From the second time on it travels alone.
func (d *Driver) runAgain(ctx context.Context, e *errand) (resp *clientv3.TxnResponse, err error) {
	err = d.passingOver(ctx, func(ctx context.Context, again bool) (err error) {
		if again {
			resp, err = d.commit(ctx, e.cmps, e.then, e.otherwise)
		} else {
			resp, err = d.run(ctx, e)
		}
		e.mayHave(err)
		return err
	})
	return resp, err
}

// read is a linearizable read.
func (d *Driver) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return d.commitAgain(ctx, nil, ops, nil)
}

// passingOver makes a call again while it hangs, or fails as it does without a leader or
// at the end of a connection, and ctx lives: an election takes a second or two.
func (d *Driver) passingOver(ctx context.Context, call func(ctx context.Context, again bool) error) error {
	wait, pause := hangAfter, electing
	for again := false; ; again = true {
		end, bounded := ctx.Deadline()
		if bounded && time.Until(end) <= wait {
			wait = time.Until(end)
		}
		limited, cancel := context.WithTimeout(ctx, wait)
		err := call(limited, again)
		hung := limited.Err() != nil
		cancel()
		switch {
		case err == nil, ctx.Err() != nil, d.life.Err() != nil:
			return err
		case hung:
			if why := d.unconnected(); why != nil {
				return advise(why)
			}
			wait *= 2
		case !passes(err), bounded && time.Until(end) <= pause:
			return err
		default:
			_ = sleep(ctx, pause) // its end shows in the next call
			pause *= 2
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *Driver) saw(rev int64) {
	for seen := d.seen.Load(); seen < rev && !d.seen.CompareAndSwap(seen, rev); seen = d.seen.Load() {
	}
}

// seconds is a TTL as etcd takes it, rounded up.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }

// roundUp is what the server makes of a TTL.
func roundUp(ttl time.Duration) time.Duration { return time.Duration(seconds(ttl)) * time.Second }
