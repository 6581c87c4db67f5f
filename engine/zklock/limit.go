package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/queue"
)

// limitsElement is the node, beside those of the resources, whose children are operators' limits, one for each resource.
// They are no containers, so that the ensemble keeps them. They are no children of a resource's node, where clients take
// each child for a claim. And escape writes no such element, so that no resource has that node.
//
// A limit that changes is deleted and made anew, in one transaction. So a watch on the children of limitsElement tells of
// each change.
const limitsElement = "%limits"

func (d *Driver) limits() string { return d.root + "/" + limitsElement }

// An operatorLimit is what the node of a limit contains. The zero value is no limit.
//
// Who holds follows from the order of the claims and the limits. A lower limit ends no lease, so it says who held when
// it was set, for those who look on: who decides whether a claim holds needs no more than the weights of all ahead.
type operatorLimit struct {
	Limit int `json:"limit"`
	// All claims with sequence numbers up to Last held, below the resource's node that transaction Parent has created.
	Parent int64 `json:"parent,omitempty"` // 0: the limit admits all who held
	Last   int32 `json:"last,omitempty"`
}

func readLimit(data []byte) (l operatorLimit, err error) {
	if err := json.Unmarshal(data, &l); err != nil || l.Limit < 1 || l.Limit > driver.MaxWeight {
		return operatorLimit{}, fmt.Errorf("zklock: the node of the limit contains %.40q, set the limit anew: %w", data, driver.ErrCorrupt)
	}
	return l, nil
}

// under returns the rule's part of a claim where an operator has set limit.
func under(limit int) func(node) queue.Claim {
	return func(n node) queue.Claim {
		c := n.claim()
		c.Limit = queue.Smaller(c.Limit, limit)
		return c
	}
}

// A line is the claims of a resource.
type line struct {
	nodes  []node // in order
	parent int64  // the transaction that has created the node above
}

// holding returns how many hold, with those who held when the limit was lowered.
func (l operatorLimit) holding(q line) int {
	n := holding(q.nodes, l.Limit)
	if l.Parent != 0 && l.Parent == q.parent {
		for n < len(q.nodes) && q.nodes[n].seq-l.Last <= 0 { // the sequence wraps around
			n++
		}
	}
	return n
}

// limits are operators' limits as far as a session knows them. It watches the node above them all: no claim asks for
// limits that have not changed, and no resource costs a watch of its own.
//
// Events come before answers that reflect later changes. So while known is not out of date when a list of claims has
// arrived, it was not when that list was made either. What is known later than the list is as good: those ahead can only
// have become fewer.
type limits struct {
	s *session

	mu    sync.Mutex
	known *knownLimits // guarded by mu; nil: never asked
}

// knownLimits are the limits until alarm rings.
type knownLimits struct {
	alarm     alarm
	key       string // of the watch
	outOfDate atomic.Bool
	there     map[string]bool          // by element
	of        map[string]operatorLimit // guarded by the mu of limits; those that were read
}

func (k *knownLimits) isOutOfDate() bool { return k != nil && k.outOfDate.Load() }

// at returns the limit of a resource if it is known.
func (l *limits) at(resource string) (limit operatorLimit, k *knownLimits, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k = l.known
	if k == nil || k.isOutOfDate() {
		return limit, nil, false
	}
	element := escape(resource, false)
	limit, ok = k.of[element]
	return limit, k, ok || !k.there[element]
}

// find returns the limit of a resource, and asks for what is not known.
func (l *limits) find(ctx context.Context, client *zk.Conn, resource string) (operatorLimit, *knownLimits, error) {
	for ctx.Err() == nil {
		if limit, k, ok := l.at(resource); ok {
			return limit, k, nil
		}
		if err := l.learn(client, escape(resource, false)); err != nil {
			return operatorLimit{}, nil, err
		}
	}
	return operatorLimit{}, nil, ctx.Err()
}

// learn makes more known: which limits there are, or what the one of that element is.
func (l *limits) learn(client *zk.Conn, element string) error {
	l.mu.Lock()
	k := l.known
	l.mu.Unlock()
	if k == nil || k.isOutOfDate() {
		k, err := l.watch(client)
		if k != nil {
			l.mu.Lock()
			l.known = k
			l.mu.Unlock()
		}
		return err
	}
	data, _, err := client.Get(l.s.d.limits() + "/" + element)
	switch {
	case k.isOutOfDate(), errors.Is(err, zk.ErrNoNode):
		return nil
	case err != nil:
		return explain(err)
	}
	limit, err := readLimit(data)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k.of[element] = limit
	return nil
}

// watch asks which limits there are, and to be told of each change; nil without an error: it has changed meanwhile.
func (l *limits) watch(client *zk.Conn) (*knownLimits, error) {
	path, w := l.s.d.limits(), &l.s.watches
	k := &knownLimits{of: make(map[string]operatorLimit)}
	k.alarm.ring = func(bool) { k.outOfDate.Store(true) }
	var exists, lists bool
	var elements []string
	err := both(
		func() (err error) { exists, err = w.exists(client, path, &k.alarm); return err },
		func() (err error) {
			elements, _, err = w.children(client, path, &k.alarm)
			if lists = err == nil; errors.Is(err, errGone) {
				return nil
			}
			return err
		})
	k.key = path
	if lists {
		w.forget(path, &k.alarm)
		k.key = childrenOf(path)
	}
	if err != nil || !lists && exists {
		w.forget(k.key, &k.alarm)
		return nil, err
	}
	k.there = make(map[string]bool, len(elements))
	for _, e := range elements {
		k.there[e] = true
	}
	return k, nil
}

// heed has a ring, too, when a limit changes. It reports false if one has changed already.
func (l *limits) heed(k *knownLimits, a *alarm) bool {
	armed := l.s.watches.add(k.key, a)
	if armed && !k.isOutOfDate() {
		return true
	}
	l.s.watches.forget(k.key, a)
	return false
}

// SetLimit implements [driver.Operator].
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if err := driver.CheckLimit(limit); err != nil {
		return fmt.Errorf("zklock: %w", err)
	}
	_, err := ask(ctx, d, func(_ *session, client *zk.Conn) (struct{}, error) {
		return struct{}{}, d.setLimit(ctx, client, name, limit)
	})
	return err
}

// setLimit sets the limit with those who held when it looked. Claims may have been granted between the look and the
// change, under the former limit. It looks again for those.
func (d *Driver) setLimit(ctx context.Context, client *zk.Conn, name string, limit int) error {
	var former operatorLimit
	changed, err := d.replaceLimit(ctx, client, name, func(now operatorLimit, q line) (operatorLimit, error) {
		former = now
		return operatorLimit{Limit: limit}.withHolders(q, now.holding(q)), nil
	})
	if err != nil || limit == 0 {
		return err
	}
	_, err = d.replaceLimit(ctx, client, name, func(now operatorLimit, q line) (operatorLimit, error) {
		held := former.holding(q)
		for ; held > now.holding(q); held-- {
			there, stat, err := client.Exists(d.path(name) + "/" + q.nodes[held-1].name)
			if err != nil {
				return now, explain(err)
			}
			if there && stat.Czxid < changed {
				break
			}
		}
		return now.withHolders(q, held), nil
	})
	return err
}

// withHolders returns l, which says that the first so many of q held, if that does not follow from it.
func (l operatorLimit) withHolders(q line, held int) operatorLimit {
	if l.Limit > 0 && held > l.holding(q) {
		l.Parent, l.Last = q.parent, q.nodes[held-1].seq
	}
	return l
}

// replaceLimit changes the limit of a resource to what next returns, and returns the transaction that did so. next gets the
// limit, and then the claims, as they were a moment ago. No other limit has changed meanwhile.
func (d *Driver) replaceLimit(ctx context.Context, client *zk.Conn, name string, next func(now operatorLimit, q line) (operatorLimit, error)) (changed int64, err error) {
	path := d.limits() + "/" + escape(name, false)
	for ctx.Err() == nil {
		if err := caughtUp(client, d.limits()); err != nil {
			return 0, err
		}
		above, stat, err := client.Exists(d.limits())
		if err != nil {
			return 0, explain(err)
		}
		data, _, err := client.Get(path)
		there := err == nil
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return 0, explain(err)
		}
		now, _ := readLimit(data) // what is damaged is replaced
		q, err := lineAt(client, d.path(name))
		if err != nil {
			return 0, err
		}
		then, err := next(now, q)
		switch {
		case err != nil:
			return 0, err
		case then == now && there == (then.Limit > 0):
			return 0, nil
		case !above:
			if err := d.createLimits(client); err != nil {
				return 0, err
			}
			continue
		}
		ops := []any{&zk.SetDataRequest{Path: d.limits(), Version: stat.Version}}
		if there {
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		}
		if then.Limit > 0 {
			data, _ := json.Marshal(then) // numbers cannot fail
			ops = append(ops, &zk.CreateRequest{Path: path, Data: data, Acl: d.acl(), Flags: zk.FlagPersistent})
		}
		done, err := client.Multi(ops...)
		switch {
		case err == nil:
			return done[0].Stat.Mzxid, nil
		case !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists):
			return 0, explain(err)
		}
	}
	return 0, ctx.Err()
}
