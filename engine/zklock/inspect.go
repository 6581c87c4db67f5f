package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/abandon"
	"github.com/leasehold-go/leasehold/internal/pages"
	"github.com/leasehold-go/leasehold/internal/several"
)

// evictedMark begins the data of a resource's node after an eviction. The name of the claim's node
// and the reason follow.
const evictedMark = "evicted "

// asksAtOnce bounds the concurrent questions about nodes.
const asksAtOnce = 32

// holderOf returns the holder with node n. If the node is gone, the holder is empty.
func holderOf(client *zk.Conn, parent string, n node) (driver.Holder, error) {
	data, stat, err := client.Get(parent + "/" + n.name)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return driver.Holder{}, nil
	case err != nil:
		return driver.Holder{}, explain(err)
	}
	return content{data, stat}.holder(n), nil
}

// content is the data of a node and its stat.
type content struct {
	data []byte
	stat *zk.Stat
}

func (c content) holder(n node) driver.Holder {
	about := detailsOf(n, c.data)
	return driver.Holder{Owner: driver.OwnerOf(about.Owner), Mode: n.mode, Limit: n.limit, Weight: n.weight, Fence: driver.FenceOf(c.stat.Czxid), Note: about.Note}
}

// ask makes a call on the connection of any session.
func ask[T any](ctx context.Context, d *Driver, call func(s *session, client *zk.Conn) (T, error)) (T, error) {
	var none T
	s, err := d.any()
	if err != nil {
		return none, err
	}
	client, err := s.ready(ctx)
	if err != nil {
		return none, err
	}
	return abandon.Call(ctx, func() (T, error) { return call(s, client) })
}

// Inspect implements [driver.Operator]. A claim that may hold counts as a holder, even if it has
// not been notified yet. ZooKeeper reports no durations.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	return ask(ctx, d, func(s *session, client *zk.Conn) (driver.State, error) { return s.inspect(ctx, client, name) })
}

func (s *session) inspect(ctx context.Context, client *zk.Conn, name string) (driver.State, error) {
	d, st := s.d, driver.State{Resource: name}
	q, op, unlimited := s.lineOf(ctx, client, name)
	if unlimited != nil && !errors.Is(unlimited, driver.ErrCorrupt) {
		return st, unlimited
	}
	nodes := q.nodes
	st.Limit = op.Limit
	found := make([]driver.Holder, len(nodes))
	errs := several.Errors(len(nodes), asksAtOnce, func(i int) (err error) {
		found[i], err = holderOf(client, d.path(name), nodes[i])
		return err
	})
	if err := cmp.Or(errs...); err != nil {
		return st, err
	}
	holders := op.holding(q)
	for i, h := range found {
		switch {
		case h.Fence == 0: // its node is gone by now
		case i < holders:
			st.Holders = append(st.Holders, h)
			st.Fence = max(st.Fence, h.Fence)
		default:
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: h.Owner, Note: h.Note, Mode: h.Mode, Weight: h.Weight})
		}
	}
	slices.SortStableFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	return st, unlimited
}

// lineOf returns the claims of a resource and its operator's limit. They are as recent as the
// leader's when it was called. If only the limit is damaged, the claims are valid.
func (s *session) lineOf(ctx context.Context, client *zk.Conn, name string) (q line, op effective, err error) {
	path := s.d.path(name)
	if err := caughtUp(client, path); err != nil {
		return q, op, err
	}
	if q, err = lineAt(client, path); err != nil {
		return line{}, op, err
	}
	op, err = s.limits.find(ctx, client, name)
	return q, op, err
}

// caughtUp waits until the server has caught up with its leader. It may lag behind the server that
// has just granted a lease.
func caughtUp(client *zk.Conn, path string) error {
	_, err := client.Sync(path)
	return explain(err)
}

// lineAt returns the claims of the resource at path.
func lineAt(client *zk.Conn, path string) (line, error) {
	names, stat, err := client.Children(path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return line{}, nil
	case err != nil:
		return line{}, explain(err)
	}
	nodes, err := parseNodes(names)
	return line{nodes, stat.Czxid}, err
}

// List implements [driver.Operator], sorted by name. Each page asks for the names of all
// resources, which ZooKeeper returns in one answer, and then for the state of those on the page.
// Nodes that are not resources are omitted. So are nodes that this user may not read, unless
// that is all of them.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (states []driver.State, next string, err error) {
	type page struct {
		states []driver.State
		next   string
	}
	p, err := ask(ctx, d, func(s *session, client *zk.Conn) (p page, err error) {
		names, err := d.names(client, prefix)
		if err != nil {
			return p, err
		}
		i, found := slices.BinarySearch(names, after)
		if found {
			i++
		}
		if names = names[i:]; len(names) > limit {
			names, p.next = names[:limit], names[limit-1]
		}
		p.states, err = s.inspectAll(ctx, client, names, after == "" && p.next == "")
		return p, err
	})
	if err != nil && !errors.Is(err, driver.ErrCorrupt) {
		return nil, "", err
	}
	return p.states, p.next, err
}

// names returns the resources that begin with prefix, in order.
func (d *Driver) names(client *zk.Conn, prefix string) (names []string, err error) {
	if err := caughtUp(client, d.top()); err != nil {
		return nil, err
	}
	elements, _, err := client.Children(d.top())
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, explain(err)
	}
	for _, e := range elements {
		name, ok := unescape(e, d.root == "")
		if ok && strings.HasPrefix(name, prefix) && driver.CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// inspectAll returns the states of those of names that are in use. all reports that there are no
// other names.
func (s *session) inspectAll(ctx context.Context, client *zk.Conn, names []string, all bool) (states []driver.State, err error) {
	states = make([]driver.State, len(names))
	errs := several.Errors(len(names), asksAtOnce, func(i int) (err error) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if states[i], err = s.inspect(ctx, client, names[i]); err != nil {
			err = fmt.Errorf("%q: %w", names[i], err)
		}
		return err
	})
	var forbidden error
	errs = slices.DeleteFunc(errs, func(err error) bool {
		isForbidden := errors.Is(err, zk.ErrNoAuth)
		if isForbidden {
			forbidden = err
		}
		return isForbidden || errors.Is(err, ErrAlien) // it belongs to another program
	})
	if err = pages.Damage(errs); err == nil && len(errs) == 0 && all {
		err = forbidden
	}
	return slices.DeleteFunc(states, func(st driver.State) bool { return len(st.Holders)+len(st.Waiters) == 0 }), err
}

// Evict implements [driver.Operator]. A foreign holder's owner is the name of its node; it does
// not receive the reason. An empty owner ends a hold that lingers.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	_, err := ask(ctx, d, func(s *session, client *zk.Conn) (struct{}, error) {
		return struct{}{}, s.evict(ctx, client, name, owner, reason)
	})
	return err
}

func (s *session) evict(ctx context.Context, client *zk.Conn, name, owner, reason string) error {
	q, op, err := s.lineOf(ctx, client, name)
	if err != nil && (!errors.Is(err, driver.ErrCorrupt) || len(q.nodes) == 0) {
		return err
	}
	path, nodes := s.d.path(name), q.nodes
	guid := guidOf(owner)
	i := slices.IndexFunc(nodes[:op.holding(q)], func(n node) bool {
		if owner == "" {
			data, _, err := client.Get(path + "/" + n.name)
			return err == nil && detailsOf(n, data).Left // a node that is gone, or not readable, does not linger for us
		}
		return n.guid == guid || n.name == owner
	})
	if i < 0 {
		return errNotHeld
	}
	// In one transaction, so that a holder whose node is deleted can find the reason.
	_, err = client.Multi(
		&zk.SetDataRequest{Path: path, Data: []byte(evictedMark + nodes[i].name + " " + reason), Version: -1},
		&zk.DeleteRequest{Path: path + "/" + nodes[i].name, Version: -1},
	)
	if errors.Is(err, zk.ErrNoAuth) { // the node above may belong to another client
		err = client.Delete(path+"/"+nodes[i].name, -1)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return lostFor("its node is gone")
	}
	return explain(err)
}

// RaiseFence returns ErrUnsupported, because the ensemble counts its transactions itself.
func (*Driver) RaiseFence(context.Context, string, uint64) error { return driver.ErrUnsupported }
