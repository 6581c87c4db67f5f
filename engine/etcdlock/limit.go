package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	rpctypes "go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// An operator's limit is the value of one of two keys below limitDir. Each change deletes one key
// and puts the other, in one transaction. So the watch of deletions, which every waiter has,
// reports the change in order with the deletions that might let the waiter in. A read of the queue
// for shared claims also reads the limit, in the same transaction. A read for exclusive claims does
// not, so shared claims of the same line read again before they hold.
//
// The order of keys and the limit decide who holds, so a lowered limit must say who holds beyond
// it. Those are the first claims of the queue, and After is the create revision of the last of
// them. They cannot be determined before the limit changes, because a transaction cannot compare
// that no key was deleted. So the lowered limit is put together with the limit that it replaces,
// Was, and counts from the revision of that put. After then follows from the keys at that revision,
// which never change. Anyone who needs After before it is stored finds it in the same way.
//
// A claim that was granted by a read or by the watch held at the revision of that read, by the
// limit at that time. If the limit was lowered since, the claim is among those up to After, however
// late its process learns of either.

// A limit is an operator's limit. The zero value is no limit.
type limit struct {
	Most  int    `json:"limit,omitempty"` // 0: none
	After int64  `json:"after,omitempty"` // applies to claims with later create revisions
	Was   *limit `json:"was,omitempty"`   // the limit that it has lowered, until After is determined

	key     string // "": there is no key
	mod     int64  // its mod revision
	unknown bool   // it is damaged or was not read
}

// limitDir returns the beginning of the keys of the limit of the resource at dir. No resource,
// tombstone or mark has such keys.
func (d *Driver) limitDir(dir string) string { return d.root + "///" + dir[len(d.root):] }

// limitedBy returns the dir of the resource whose limit is in key. It returns false for other keys.
func (d *Driver) limitedBy(key string) (dir string, ok bool) {
	rest, ok := strings.CutPrefix(key, d.root+"///")
	if !ok {
		return "", false
	}
	return d.root + dirOf(rest), true
}

// readsOf returns the reads of the limit and the keys of the resource at dir.
func (d *Driver) readsOf(dir string) []clientv3.Op {
	return []clientv3.Op{d.limitOf(dir), keysOf(dir)}
}

func (d *Driver) limitOf(dir string) clientv3.Op {
	return clientv3.OpGet(d.limitDir(dir), clientv3.WithPrefix())
}

func keysOf(dir string) clientv3.Op { return clientv3.OpGet(dir, clientv3.WithPrefix()) }

// limitIn returns the limit of the resource at dir, if resp has read it.
func (d *Driver) limitIn(dir string, resp *clientv3.TxnResponse) (limit, error) {
	for _, one := range resp.Responses {
		if kvs := one.GetResponseRange().GetKvs(); len(kvs) > 0 && strings.HasPrefix(string(kvs[0].Key), d.limitDir(dir)) {
			return newLimit(kvs[len(kvs)-1])
		}
	}
	return limit{}, nil
}

func newLimit(kv *mvccpb.KeyValue) (l limit, err error) {
	err = json.Unmarshal(kv.Value, &l)
	if err != nil || l.Most < 0 || l.Most > driver.MaxWeight {
		damaged := limit{unknown: true, key: string(kv.Key), mod: kv.ModRevision}
		return damaged, fmt.Errorf("etcdlock: the limit in %q: %w", kv.Key, driver.ErrCorrupt)
	}
	l.key, l.mod = string(kv.Key), kv.ModRevision
	if l.After >= l.mod { // a copy from another cluster, with other revisions
		l.After = 0
	}
	return l, nil
}

// decided returns claim c with create revision rev as the rule of the queue decides whether it
// holds. For claims behind it, c counts without the limit.
func (l limit) decided(c queue.Claim, rev int64) queue.Claim {
	if rev > l.After {
		c.Limit = queue.Smaller(c.Limit, l.Most)
	}
	return c
}

// doubts reports whether it is unknown if a claim with that create revision held when the limit was
// lowered.
func (l limit) doubts(rev int64) bool { return l.Was != nil && rev < l.mod }

// holders returns the claims of all that hold. all is in order.
func (l limit) holders(all []entry) []entry {
	var ahead queue.Ahead
	for i, e := range all {
		c := e.claim()
		if !ahead.Admits(l.decided(c, e.rev)) {
			return all[:i]
		}
		ahead.Add(c)
	}
	return all
}

// settled returns l without doubts: it finds out who held when the limit was lowered. Others must
// do that only if an operator's process ended in the middle. If the server has compacted that
// revision, no claim is known to have held beyond the limit, except to itself.
func (d *Driver) settled(ctx context.Context, dir string, l limit) (limit, error) {
	if l.Was == nil {
		return l, nil
	}
	was := *l.Was
	l.Was = nil
	resp, err := d.read(ctx, clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithRev(l.mod)))
	if errors.Is(err, rpctypes.ErrCompacted) {
		return l, nil
	} else if err != nil {
		return l, err
	}
	if holds := was.holders(entries(dir, found(resp, 0))); len(holds) > 0 {
		l.After = max(l.After, holds[len(holds)-1].rev)
	}
	return l, nil
}

// settle is settled, and also stores the result for others. It does nothing if another has stored
// it, or has changed the limit.
func (d *Driver) settle(ctx context.Context, dir string, l limit) (limit, error) {
	after, err := d.settled(ctx, dir, l)
	if err == nil && l.Was != nil {
		_, err = d.swap(ctx, dir, l, after)
	}
	return after, err
}

// swap replaces a limit, unless it has changed; then done is zero. If next is no limit, its key is
// deleted.
func (d *Driver) swap(ctx context.Context, dir string, was, next limit) (done limit, err error) {
	cmps := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(was.key), "=", was.mod)}
	next.key = d.limitDir(dir) + "a"
	if was.key == next.key {
		next.key = d.limitDir(dir) + "b"
	}
	value, _ := json.Marshal(next) // numbers always encode
	ops := []clientv3.Op{clientv3.OpDelete(was.key), clientv3.OpPut(next.key, string(value))}
	if next.Most == 0 {
		ops = ops[:1]
	}
	resp, err := d.commitAgain(ctx, cmps, ops...)
	if err != nil || !resp.Succeeded {
		return limit{}, err
	}
	next.mod = resp.Header.Revision
	return next, nil
}

// limitRounds bounds how often SetLimit starts over because the limit has changed meanwhile.
const limitRounds = 20

// SetLimit implements [driver.Operator]. The limit has a key of its own, without a lease.
func (d *Driver) SetLimit(ctx context.Context, name string, most int) error {
	if err := driver.CheckLimit(most); err != nil {
		return err
	}
	if err := d.usable(ctx); err != nil {
		return err
	}
	for range limitRounds {
		if done, err := d.limitTo(ctx, d.dir(name), most); done || err != nil {
			return err
		}
	}
	return errors.New("etcdlock: the limit is changed all the time")
}

// limitTo takes one step towards a limit of most, and reports whether it is reached. When it replaces
// a damaged limit, the holders beyond the new one are unknown, but later claims still count them.
func (d *Driver) limitTo(ctx context.Context, dir string, most int) (done bool, err error) {
	resp, err := d.read(ctx, d.limitOf(dir))
	if err != nil {
		return false, err
	}
	was, _ := d.limitIn(dir, resp) // the only error is that it is damaged, hence unknown
	switch {
	case was.Was != nil: // its operator's process has ended, or is about to settle it
		_, err = d.settle(ctx, dir, was)
		return false, err
	case was.Most == most && (most > 0 || was.key == ""):
		return true, nil
	case was.key == "": // put a key without a limit first, so that the next step can replace it
		_, err = d.commitAgain(ctx, []clientv3.Cmp{none(d.limitDir(dir))}, clientv3.OpPut(d.limitDir(dir)+"a", "{}"))
		return false, err
	}
	next := limit{Most: most, After: was.After}
	if lowers := queue.Smaller(was.Most, most) != was.Most; lowers && !was.unknown {
		next.Was = &limit{Most: was.Most, After: was.After}
	}
	next, err = d.swap(ctx, dir, was, next)
	if next.mod == 0 || err != nil {
		return false, err
	}
	_, err = d.settle(ctx, dir, next)
	return true, err
}
