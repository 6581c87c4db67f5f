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
)

// limitsElement is the node whose children are operators' limits, one for each resource. It is
// beside the nodes of the resources. No resource has that node, because escape never writes such an
// element. The limits are not children of a resource's node, where clients take each child for a
// claim. They are not containers, so the ensemble keeps them.
//
// A limit is changed by deleting and creating its node in one transaction. So a watch on the
// children of limitsElement reports each change.
const limitsElement = "%limits"

func (d *Driver) limits() string { return d.root + "/" + limitsElement }

// An operatorLimit is the content of a limit's node. The zero value is no limit.
//
// Who holds follows from the order of the claims and the limits. A lowered limit ends no lease, so
// it records who held when it was set. Only observers need that: whether a claim holds is decided
// by the weights of all claims ahead of it.
type operatorLimit struct {
	Limit int `json:"limit"`
	// All claims with sequence numbers up to Last held, below the resource's node that was created
	// by transaction Parent.
	Parent int64 `json:"parent,omitempty"` // 0: every claim that held fits the limit
	Last   int32 `json:"last,omitempty"`
}

func readLimit(data []byte) (l operatorLimit, err error) {
	if err := json.Unmarshal(data, &l); err != nil || l.Limit < 1 || l.Limit > driver.MaxWeight {
		return operatorLimit{}, fmt.Errorf("zklock: the node of the limit contains %.40q, set the limit anew: %w", data, driver.ErrCorrupt)
	}
	return l, nil
}

// A line is the claims of a resource.
type line struct {
	nodes  []node // in order
	parent int64  // the transaction that created the node above them
}

// holding returns how many claims hold, including those that held when the limit was lowered.
func (l operatorLimit) holding(q line) int {
	n := holding(q.nodes, l.Limit)
	if l.Parent != 0 && l.Parent == q.parent {
		for n < len(q.nodes) && q.nodes[n].seq-l.Last <= 0 { // sequence numbers wrap around
			n++
		}
	}
	return n
}

// limits are the operators' limits that a session knows. It watches the node above them all, so
// claims need not ask for limits that have not changed, and resources need no watches of their own.
//
// Events come before answers that reflect later changes. So if known is not out of date when a list
// of claims has arrived, it was not out of date when the list was made. Limits that were read after
// the list are valid for it too, because the claims ahead can only have become fewer.
type limits struct {
	s *session

	mu    sync.Mutex
	known *knownLimits // guarded by mu; nil: never asked
}

// knownLimits are limits that are valid until alarm rings.
type knownLimits struct {
	alarm     alarm
	key       string // the key of the watch
	outOfDate atomic.Bool
	there     map[string]bool          // which limits exist, by element
	of        map[string]operatorLimit // guarded by the mu of limits; the limits that were read
}

func (k *knownLimits) isOutOfDate() bool { return k != nil && k.outOfDate.Load() }

// An effective limit is an operator's limit, as a claim has found it.
type effective struct {
	operatorLimit
	known *knownLimits // the limits that it is from; nil: the claim is exclusive, and needs none
}

// at returns the limit of a resource. ok is false if it is not known; known is nil if no limits are.
func (l *limits) at(resource string) (op effective, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known
	if k == nil || k.isOutOfDate() {
		return op, false
	}
	element := escape(resource, false)
	limit, ok := k.of[element]
	return effective{limit, k}, ok || !k.there[element]
}

// find returns the limit of a resource, and reads it if it is not known.
func (l *limits) find(ctx context.Context, client *zk.Conn, resource string) (effective, error) {
	for ctx.Err() == nil {
		op, ok := l.at(resource)
		if ok {
			return op, nil
		}
		var err error
		if op.known == nil {
			err = l.watch(client)
		} else {
			err = l.read(client, op.known, escape(resource, false))
		}
		if err != nil {
			return effective{}, err
		}
	}
	return effective{}, ctx.Err()
}

// read reads the limit of one element. It does nothing if that is gone, or k is out of date.
func (l *limits) read(client *zk.Conn, k *knownLimits, element string) error {
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

// watch reads which limits exist and begins to watch them. It does nothing if the first limit has
// come meanwhile.
func (l *limits) watch(client *zk.Conn) error {
	path, w := l.s.d.limits(), &l.s.watches
	k := &knownLimits{key: childrenOf(path), of: make(map[string]operatorLimit)}
	k.alarm.ring = func(bool) { k.outOfDate.Store(true) }
	elements, _, err := w.children(client, path, &k.alarm)
	if errors.Is(err, errGone) { // nobody has ever set a limit
		k.key = path
		var exists bool
		if exists, err = w.exists(client, path, &k.alarm); exists {
			w.forget(path, &k.alarm)
			return nil
		}
	}
	if err != nil {
		return err
	}
	k.there = make(map[string]bool, len(elements))
	for _, e := range elements {
		k.there[e] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = k
	return nil
}

// heed makes a ring when a limit changes. It returns false if one has changed already.
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

// setLimit sets the limit and records who holds. Claims may be granted under the former limit
// between the look at them and the change. So it looks again afterwards and adds those.
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

// withHolders returns l with the record that the first held claims of q held, if l does not imply
// that.
func (l operatorLimit) withHolders(q line, held int) operatorLimit {
	if l.Limit > 0 && held > l.holding(q) {
		l.Parent, l.Last = q.parent, q.nodes[held-1].seq
	}
	return l
}

// replaceLimit changes the limit of a resource to what next returns, and returns the transaction
// that changed it. next is called with the current limit and claims. No limit has changed between
// the call and the transaction.
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
		now, _ := readLimit(data) // a damaged limit is replaced
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
			data, _ := json.Marshal(then) // numbers always encode
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
