package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// page is how many keys List reads at once at most.
	page = 2000
	// maxAsked bounds of how many leases one List asks the time that is left.
	maxAsked = 100
	// evictRounds bounds how often Evict begins again because the holder renewed meanwhile.
	evictRounds = 10
)

// Inspect implements [driver.Operator]. It shows a lease that is no longer renewed until etcd
// ends it, up to a second late.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	queue, err := d.queue(ctx, name)
	if err != nil {
		return driver.State{}, err
	}
	left := leaseTimes{d: d, known: make(map[clientv3.LeaseID]leaseTime)}
	return left.state(ctx, name, queue), nil
}

// queue reads the keys of a resource, without what this driver knows to have expired.
func (d *Driver) queue(ctx context.Context, name string) ([]entry, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	d.sweep(ctx)
	return d.list(ctx, d.dir(name))
}

// List implements [driver.Operator]. Pages are in the order of keys, in which "a-b" may come
// before "a".
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	if err := d.usable(ctx); err != nil {
		return nil, "", err
	}
	d.sweep(ctx)
	from := d.root + escape(prefix)
	end := clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		from, end = "\x00", "\x00"
	}
	if after != "" {
		from = max(from, clientv3.GetPrefixRangeEnd(d.dir(after)))
	}
	left := leaseTimes{d: d, known: make(map[clientv3.LeaseID]leaseTime)}
	var name string // of the keys in queue
	var queue []entry
	done := func() {
		if len(queue) > 0 {
			slices.SortFunc(queue, byRevision)
			states = append(states, left.state(ctx, name, queue))
		}
	}
	for rev, more := int64(0), true; more; {
		resp, err := d.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(min(int64(limit)+1, page)), clientv3.WithRev(rev)))
		if err != nil {
			return nil, "", err
		}
		r := resp.Responses[0].GetResponseRange()
		if rev == 0 {
			rev = resp.Header.Revision // all keys as of then
		}
		for _, kv := range r.Kvs {
			from = string(kv.Key) + "\x00"
			of, ok := d.nameOf(string(kv.Key))
			if !ok {
				continue
			}
			if of != name {
				if done(); len(states) == limit {
					return byName(states), name, nil
				}
				name, queue = of, nil
			}
			queue = append(queue, newEntry(kv))
		}
		more = r.More
	}
	done()
	return byName(states), "", nil
}

func byName(states []driver.State) []driver.State {
	slices.SortFunc(states, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	return states
}

// nameOf is the resource that a key belongs to.
func (d *Driver) nameOf(key string) (string, bool) {
	escaped, _, ok := strings.Cut(key[len(d.root):], "/")
	name := unescape(escaped)
	return name, ok && escape(name) == escaped && dirOf(key) == d.dir(name) && driver.CheckName(name) == nil
}

// leaseTimes asks how long leases have left, each once.
type leaseTimes struct {
	d     *Driver
	known map[clientv3.LeaseID]leaseTime
}

// A leaseTime is what etcd tells of a lease; zero: unknown.
type leaseTime struct{ left, ttl time.Duration }

func (l *leaseTimes) of(ctx context.Context, id clientv3.LeaseID) leaseTime {
	told, ok := l.known[id]
	if !ok && len(l.known) < maxAsked {
		resp, err := l.d.client.TimeToLive(ctx, id)
		if err == nil && resp.TTL > 0 { // else it is unknown, as is what cannot be asked
			told = leaseTime{time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second}
		}
		l.known[id] = told
	}
	return told
}

func (l *leaseTimes) state(ctx context.Context, name string, queue []entry) driver.State {
	st := driver.State{Resource: name}
	holds := holders(queue)
	for _, e := range holds {
		h := e.holder()
		told := l.of(ctx, e.lease)
		h.Left, h.TTL = told.left, told.ttl
		st.Holders = append(st.Holders, h)
		st.Fence = max(st.Fence, h.Fence)
	}
	for _, e := range queue[len(holds):] {
		st.Waiters = append(st.Waiters, driver.Waiter{Owner: driver.OwnerOf(e.name()), Mode: e.mode(), Note: e.Note})
	}
	return st
}

func (e *entry) mode() driver.Mode {
	if e.Shared {
		return driver.Shared
	}
	return driver.Exclusive
}

func (e *entry) holder() driver.Holder {
	return driver.Holder{Owner: driver.OwnerOf(e.name()), Mode: e.mode(), Limit: e.Limit, Fence: driver.FenceOf(e.rev), Note: e.Note}
}

// RaiseFence returns ErrUnsupported, because etcd counts its revisions itself.
func (*Driver) RaiseFence(context.Context, string, uint64) error { return driver.ErrUnsupported }

// Evict implements [driver.Operator]: it deletes the key of a holder, which is notified with the
// reason. Later holders have larger fences. A foreign client notices that its key is gone. A
// hold that lingers ends without notice.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	for range evictRounds {
		queue, err := d.queue(ctx, name)
		if err != nil {
			return err
		}
		holds := holders(queue)
		i := slices.IndexFunc(holds, func(e entry) bool { return e.name() == owner })
		if i < 0 {
			return fmt.Errorf("%w: its owner does not hold it", driver.ErrLost)
		}
		if done, err := d.evict(ctx, &holds[i], reason); done || err != nil {
			return err
		}
	}
	return errors.New("etcdlock: the holder's key changes all the time")
}

// evictedFor comes before the reason, so that one that is empty is told too.
const evictedFor = "evicted: "

// evict leaves the reason in the value of the key, where the holder looks when it is gone.
func (d *Driver) evict(ctx context.Context, e *entry, reason string) (done bool, err error) {
	marked := e.content
	marked.Evicted = evictedFor + reason
	done, err = d.replace(ctx, e, clientv3.OpPut(e.key, marked.encode(), clientv3.WithIgnoreLease()))
	if !done && !errors.Is(err, ErrNoSpace) { // else without a reason
		return false, err
	}
	done, err = d.delete(ctx, dirOf(e.key), e.key, created(e.key, e.rev))
	if err == nil && !done {
		err = fmt.Errorf("%w: it was released meanwhile", driver.ErrLost)
	}
	return done, err
}

// SetLimit returns [driver.ErrUnsupported].
func (*Driver) SetLimit(context.Context, string, int) error { return driver.ErrUnsupported }
