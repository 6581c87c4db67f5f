package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// page is how many keys List reads at once at most.
	page = 2000
	// maxAsked bounds the number of leases whose remaining time one List asks for.
	maxAsked = 100
	// evictRounds bounds how often Evict starts over because the holder renewed meanwhile.
	evictRounds = 10
)

// Inspect implements [driver.Operator]. It shows a lease that is no longer renewed until etcd
// ends it, up to a second late.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	seen, err := d.listKept(ctx, name)
	if err != nil && !errors.Is(err, driver.ErrCorrupt) {
		return driver.State{}, err
	}
	return d.state(ctx, name, seen, make(leaseTimes)), err
}

// listKept is list without the holders that this driver knows to have expired.
func (d *Driver) listKept(ctx context.Context, name string) (look, error) {
	if err := d.usable(ctx); err != nil {
		return look{}, err
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
	first := d.root + escape(prefix)
	from, end := max(first, "\x00"), clientv3.GetPrefixRangeEnd(first) // no key is empty
	if after != "" {
		from = max(from, clientv3.GetPrefixRangeEnd(d.dir(after)))
	}
	var all []used
	rev, err := d.scan(ctx, from, end, 0, min(limit, page-1)+1, func(kv *mvccpb.KeyValue) (more bool) {
		name, ok := d.nameOf(string(kv.Key))
		switch last := len(all) - 1; {
		case !ok:
		case last >= 0 && all[last].name == name:
			all[last].queue = append(all[last].queue, newEntry(kv))
		case last >= 0 && len(all) == limit:
			next = all[last].name
			return false
		default:
			all = append(all, used{name, []entry{newEntry(kv)}})
		}
		return true
	})
	if err != nil {
		return nil, "", err
	}
	states, err = d.states(ctx, all, rev)
	return states, next, err
}

// scan calls visit with the keys from one up to another, in order, until it returns false. It reads
// size keys at once, as of revision rev; 0: the present one. It returns that revision.
func (d *Driver) scan(ctx context.Context, from, end string, rev int64, size int, visit func(*mvccpb.KeyValue) bool) (int64, error) {
	for {
		resp, err := d.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(int64(size)), clientv3.WithRev(rev)))
		if err != nil {
			return rev, err
		}
		rev = cmp.Or(rev, resp.Header.Revision)
		r := resp.Responses[0].GetResponseRange()
		for _, kv := range r.Kvs {
			if !visit(kv) {
				return rev, nil
			}
			from = string(kv.Key) + "\x00"
		}
		if !r.More {
			return rev, nil
		}
	}
}

// used is a resource that has keys.
type used struct {
	name  string
	queue []entry
}

// states returns the states of all, sorted by name. all is in the order of keys. It reads their
// limits as of revision rev. A damaged limit hides none of the others.
func (d *Driver) states(ctx context.Context, all []used, rev int64) (states []driver.State, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	limits, failed := d.limits(ctx, d.dir(all[0].name), d.dir(all[len(all)-1].name), rev)
	if failed != nil && !errors.Is(failed, driver.ErrCorrupt) {
		return nil, failed
	}
	asked := make(leaseTimes)
	for _, one := range all {
		dir := d.dir(one.name)
		l, err := d.settled(ctx, dir, limits[dir])
		if err != nil {
			return nil, err
		}
		slices.SortFunc(one.queue, byRevision)
		states = append(states, d.state(ctx, one.name, look{one.queue, l, rev}, asked))
	}
	slices.SortFunc(states, func(a, b driver.State) int { return cmp.Compare(a.Resource, b.Resource) })
	return states, failed
}

// limits reads the limits of the resources from first to last, by dir.
func (d *Driver) limits(ctx context.Context, first, last string, rev int64) (of map[string]limit, damaged error) {
	of = make(map[string]limit)
	end := clientv3.GetPrefixRangeEnd(d.limitDir(last))
	_, failed := d.scan(ctx, d.limitDir(first), end, rev, page, func(kv *mvccpb.KeyValue) bool {
		l, err := newLimit(kv)
		damaged = cmp.Or(err, damaged)
		if dir, ok := d.limitedBy(string(kv.Key)); ok {
			of[dir] = l
		}
		return true
	})
	return of, cmp.Or(failed, damaged)
}

// nameOf returns the resource that a key belongs to.
func (d *Driver) nameOf(key string) (string, bool) {
	escaped, _, ok := strings.Cut(key[len(d.root):], "/")
	name := unescape(escaped)
	return name, ok && escape(name) == escaped && dirOf(key) == d.dir(name) && driver.CheckName(name) == nil
}

// leaseTimes are the leases that were asked for their remaining time, each once.
type leaseTimes map[clientv3.LeaseID]leaseTime

// A leaseTime is etcd's answer about a lease; zero: unknown.
type leaseTime struct{ left, ttl time.Duration }

func (d *Driver) leaseTime(ctx context.Context, id clientv3.LeaseID, asked leaseTimes) leaseTime {
	told, ok := asked[id]
	if !ok && len(asked) < maxAsked {
		var resp *clientv3.LeaseTimeToLiveResponse
		err := d.repeating(ctx, hangAfter, func(ctx context.Context) (err error) {
			resp, err = d.client.TimeToLive(ctx, id)
			return err
		})
		if err == nil && resp.TTL > 0 { // otherwise the time is unknown
			told = leaseTime{time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second}
		}
		asked[id] = told
	}
	return told
}

func (d *Driver) state(ctx context.Context, name string, seen look, asked leaseTimes) driver.State {
	st := driver.State{Resource: name, Limit: seen.limit.Most}
	holds := seen.holders()
	for _, e := range holds {
		h := e.holder()
		told := d.leaseTime(ctx, e.lease, asked)
		h.Left, h.TTL = told.left, told.ttl
		st.Holders = append(st.Holders, h)
		st.Fence = max(st.Fence, h.Fence)
	}
	for _, e := range seen.queue[len(holds):] {
		st.Waiters = append(st.Waiters, driver.Waiter{Owner: driver.OwnerOf(e.name()), Mode: e.mode(), Weight: e.uses(), Note: e.Note})
	}
	return st
}

func (e *entry) mode() driver.Mode {
	if e.Shared || e.weight > 0 {
		return driver.Shared
	}
	return driver.Exclusive
}

// uses returns how much of a limit its claim uses.
func (e *entry) uses() int { return e.mode().Uses(e.weight) }

func (e *entry) holder() driver.Holder {
	return driver.Holder{Owner: driver.OwnerOf(e.name()), Mode: e.mode(), Limit: e.Limit, Weight: e.uses(), Fence: driver.FenceOf(e.rev), Note: e.Note}
}

// RaiseFence returns ErrUnsupported, because etcd counts its revisions itself.
func (*Driver) RaiseFence(context.Context, string, uint64) error { return driver.ErrUnsupported }

// Evict implements [driver.Operator]: it deletes the key of a holder, which is notified with the
// reason. Later holders have larger fences. A foreign client notices that its key is gone. A
// hold that lingers ends without notice.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	for range evictRounds {
		seen, err := d.listKept(ctx, name)
		needsLimit := len(seen.queue) == 0 || seen.queue[0].mode() == driver.Shared
		if err != nil && (needsLimit || !errors.Is(err, driver.ErrCorrupt)) {
			return err
		}
		holds := seen.holders()
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

// evictedFor precedes the reason, so that an eviction without a reason is reported too.
const evictedFor = "evicted: "

// evict puts the reason into the value of the key, where the holder looks when the key is gone.
func (d *Driver) evict(ctx context.Context, e *entry, reason string) (done bool, err error) {
	marked := e.content
	marked.Evicted = evictedFor + reason
	err = d.repeating(ctx, hangAfter, func(ctx context.Context) (err error) {
		done, err = d.replace(ctx, e, clientv3.OpPut(e.key, marked.encode(), clientv3.WithIgnoreLease()))
		return err
	})
	if !done && !errors.Is(err, ErrNoSpace) { // then it deletes without a reason
		return false, err
	}
	done, err = d.delete(ctx, *e)
	if err == nil && !done {
		err = fmt.Errorf("%w: it was released meanwhile", driver.ErrLost)
	}
	return done, err
}
