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

// An operator's limit is the value of one of two keys below limitDir. Each change deletes one of them and
// puts the other, in one transaction. So the watch of deletions, which every waiter has, tells of the
// change in the order of the deletions that might let the waiter in. A read of the queue for shared claims
// reads the limit, too, in the same transaction. One for exclusive claims does not: after it, shared ones
// in the same line read again before they hold.
//
// Holders follow from the order of keys, so a lower limit has to tell who holds beyond it. These are the
// first claims of the queue, and After is the last one's create revision. Who they are is decided when the
// limit changes, not before: a transaction cannot compare that no key was deleted. So the lower limit is
// put with what it replaces (Was), and counts from that revision on. Then After follows from the keys as they
// were at that revision, which never change. Whoever is in doubt meanwhile finds it out as well.
//
// A claim that was granted by a read, or by the watch, held at that revision by the limit as it was then. Should
// the limit have been lowered since, the claim is among those up to After, however late its process learns of
// either.

// A limit is what an operator has set. The zero value is none.
type limit struct {
	Most  int    `json:"limit,omitempty"` // 0: none
	After int64  `json:"after,omitempty"` // it counts for claims of later create revisions
	Was   *limit `json:"was,omitempty"`   // the one that it has lowered, as long as After does not tell who held then

	key     string // "": there is none
	mod     int64  // when it was set
	unknown bool   // it is damaged, or was not read
}

// limitDir is what the keys of the limit of the resource at dir begin with. No resource, tombstone or mark has such keys.
func (d *Driver) limitDir(dir string) string { return d.root + "///" + dir[len(d.root):] }

// limitedBy is the dir of the resource whose limit is in key; false: it is another key.
func (d *Driver) limitedBy(key string) (dir string, ok bool) {
	rest, ok := strings.CutPrefix(key, d.root+"///")
	if !ok {
		return "", false
	}
	return d.root + dirOf(rest), true
}

// readsOf read the limit and the keys of the resource at dir.
func (d *Driver) readsOf(dir string) []clientv3.Op {
	return []clientv3.Op{d.limitOf(dir), keysOf(dir)}
}

func (d *Driver) limitOf(dir string) clientv3.Op {
	return clientv3.OpGet(d.limitDir(dir), clientv3.WithPrefix())
}

func keysOf(dir string) clientv3.Op { return clientv3.OpGet(dir, clientv3.WithPrefix()) }

// limitIn is the limit of the resource at dir, if resp has read it.
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
		return limit{unknown: true}, fmt.Errorf("etcdlock: the limit in %q: %w", kv.Key, driver.ErrCorrupt)
	}
	l.key, l.mod = string(kv.Key), kv.ModRevision
	if l.After >= l.mod { // a copy from another cluster
		l.After = 0
	}
	return l, nil
}

// decided is claim c, of that create revision, as the rule of the queue decides on it. As one that is ahead of others it
// counts as it is.
func (l limit) decided(c queue.Claim, rev int64) queue.Claim {
	if rev > l.After {
		c.Limit = queue.Smaller(c.Limit, l.Most)
	}
	return c
}

// doubts reports whether it is to be found out whether a claim of that create revision held when the limit was lowered.
func (l limit) doubts(rev int64) bool { return l.Was != nil && rev < l.mod }

// holders are those of all, which are in order, that hold.
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

// settled is l without doubts: it finds out who held when the limit was lowered. Only an operator's process
// that ended in the middle leaves that to others; if the server has forgotten meanwhile, nobody held beyond
// the limit but those who know it.
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

// settle is settled, and has others know it, too. Another may have done so before, or may have changed the limit.
func (d *Driver) settle(ctx context.Context, dir string, l limit) (limit, error) {
	after, err := d.settled(ctx, dir, l)
	if err == nil && l.Was != nil {
		_, err = d.swap(ctx, dir, l, after)
	}
	return after, err
}

// swap replaces a limit, unless it has changed, which is not done then. One of nothing is deleted.
func (d *Driver) swap(ctx context.Context, dir string, was, next limit) (done limit, err error) {
	cmps := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(was.key), "=", was.mod)}
	next.key = d.limitDir(dir) + "a"
	if was.key == next.key {
		next.key = d.limitDir(dir) + "b"
	}
	value, _ := json.Marshal(next) // numbers never fail
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

// limitRounds bounds how often SetLimit begins again because the limit has changed meanwhile.
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

// limitTo comes closer to a limit of most.
func (d *Driver) limitTo(ctx context.Context, dir string, most int) (done bool, err error) {
	resp, err := d.read(ctx, clientv3.OpGet(d.limitDir(dir), clientv3.WithPrefix()))
	if err != nil {
		return false, err
	}
	was, err := d.limitIn(dir, resp)
	if err != nil {
		return false, err
	}
	switch {
	case was.Was != nil: // by an operator's process that has ended, or is about to do the same
		_, err = d.settle(ctx, dir, was)
		return false, err
	case was.Most == most && (most > 0 || was.key == ""):
		return true, nil
	case was.key == "": // one of nothing, to be replaced
		_, err = d.commitAgain(ctx, []clientv3.Cmp{none(d.limitDir(dir))}, clientv3.OpPut(d.limitDir(dir)+"a", "{}"))
		return false, err
	}
	next := limit{Most: most, After: was.After}
	if lowers := queue.Smaller(was.Most, most) != was.Most; lowers {
		next.Was = &limit{Most: was.Most, After: was.After}
	}
	next, err = d.swap(ctx, dir, was, next)
	if next.mod == 0 || err != nil {
		return false, err
	}
	_, err = d.settle(ctx, dir, next)
	return true, err
}
