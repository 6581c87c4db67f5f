package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasehold-go/leasehold/driver"
)

// queue makes sure that the claim has a node.
func (c *claim) queue(ctx context.Context, conn *zk.Conn) error {
	if c.node != "" && c.session != 0 && c.session != c.d.link.current() {
		c.forget() // the ensemble has removed it
	}
	if c.unsure {
		if err := c.find(conn); err != nil {
			return err
		}
	}
	if c.node != "" {
		return nil
	}
	asked := time.Now()
	c.unsure = true // until there is an answer; if nobody comes to hear it, the timer looks
	c.arm(asked.Add(placeTTL))
	prefix := c.parent + "/" + namePrefix(&c.req, c.d.exclusive)
	c.listBehind(conn, prefix)
	path, err := c.d.create(ctx, conn, c.parent, prefix, details{Owner: c.req.Owner, Note: c.req.Note}.encode())
	if _, never := c.d.link.behind.LoadAndDelete(prefix); never || err != nil {
		c.list = nil
	}
	switch {
	case err != nil && answered(err):
		c.unsure = false
		return err
	case err != nil:
		return err
	}
	c.unsure = false
	c.own(path[strings.LastIndexByte(path, '/')+1:])
	if b, ok := c.d.link.birth(path); ok {
		c.session = b.session
		c.d.link.prove(b.session, asked)
		c.mu.Lock()
		c.fence = b.zxid
		c.mu.Unlock()
	}
	return nil
}

// A listing is the names of the claims of a resource.
type listing struct {
	names []string
	err   error
}

// listBehind asks for the claims right behind the creation of a node at prefix, without
// waiting for its answer: the ensemble serves both in this order.
func (c *claim) listBehind(conn *zk.Conn, prefix string) {
	list := make(chan listing, 1)
	c.list = list
	c.d.link.behind.Store(prefix, func() {
		names, _, err := conn.Children(c.parent)
		list <- listing{names, err}
	})
}

// names lists the claims of the resource. A list that was asked for behind the creation of
// the claim's node will do if that is in it.
func (c *claim) names(conn *zk.Conn) ([]string, error) {
	if list := c.list; list != nil {
		c.list = nil
		if l := <-list; l.err == nil && slices.Contains(l.names, c.node) {
			return l.names, nil
		}
	}
	names, _, err := conn.Children(c.parent)
	return names, explain(err)
}

// find looks for a node that an attempt of unknown outcome may have created. After a sync
// nothing of a former connection of the session can come any more.
func (c *claim) find(conn *zk.Conn) error {
	if err := c.d.link.sync(conn, c.parent); err != nil {
		return err
	}
	names, _, err := conn.Children(c.parent)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return explain(err)
	}
	for _, name := range names {
		if n, err := parseNode(name); err == nil && n.guid == c.guid && name != c.node {
			c.own(name)
		}
	}
	c.unsure = false
	return nil
}

// own takes the node of that name for the claim's.
func (c *claim) own(name string) {
	c.node, c.session, c.over, c.lingers = name, 0, false, false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence, c.held, c.lost = 0, false, nil
}

// forget is called when the claim's node is gone.
func (c *claim) forget() {
	c.unwatch()
	c.node, c.session, c.over = "", 0, false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence = 0
	if c.timer != nil {
		c.timer.Stop()
	}
}

// A wake is what one who waits in the queue listens to.
type wake struct {
	paths    []string // the nodes of which one must go before it can be granted
	alarm    alarm
	rung     chan struct{}
	greeting int // of the connection it asks on

	asked   time.Time         // guarded by turn; when the last Try began
	granted chan driver.Grant // guarded by turn; nil: whoever is woken must look
}

// await has the claim woken when one of ahead goes; next says that its turn has come then.
// errGone: one is gone already. It also returns the content of the first of them, if it has
// asked for it.
func (c *claim) await(conn *zk.Conn, ahead []node, next bool, asked time.Time) (*wake, content, error) {
	paths := make([]string, len(ahead))
	for i, n := range ahead {
		paths[i] = c.parent + "/" + n.name
	}
	if w := c.wake; w != nil && slices.Equal(w.paths, paths) && !w.hasRung() {
		w.asked = asked
		if !next {
			w.granted = nil
		}
		return w, content{}, nil // armed before, and they are all there
	}
	c.stopWaiting()
	session, greeting, isUp := c.d.link.connection()
	next = next && isUp && session == c.session
	w := &wake{paths: paths, rung: make(chan struct{}), greeting: greeting, asked: asked}
	w.alarm.ring = func(deleted bool) { c.woken(w, deleted) }
	c.wake = w
	errs := make([]error, len(paths)+1)
	var all sync.WaitGroup
	for i, path := range paths[1:] {
		all.Go(func() { _, errs[i+1] = c.d.watches.listen(conn, path, &w.alarm) })
	}
	if next {
		all.Go(func() { errs[len(paths)] = c.listenOnce(conn) })
	}
	seen, err := c.d.watches.listen(conn, paths[0], &w.alarm)
	all.Wait()
	errs[0] = err
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		c.stopWaiting()
		return nil, seen, errs[i]
	}
	if next && c.endsAlone(seen) {
		w.granted = make(chan driver.Grant, 1)
	}
	return w, seen, nil
}

// endsAlone reports whether the node with that content, which is not known if somebody else
// listens to it, leaves its place empty when it is deleted, and our own node where it is: the
// nodes of one session end in any order.
func (c *claim) endsAlone(seen content) bool {
	return seen.stat != nil && seen.stat.EphemeralOwner != c.session && !lingers(seen.data)
}

// listenOnce is listen, unless that was done before.
func (c *claim) listenOnce(conn *zk.Conn) error {
	if c.isWatched() {
		return nil
	}
	err := c.listen(conn)
	if err != nil {
		c.unwatch()
	}
	return err
}

// woken is called by the client's own goroutine when something happened to a node that the
// claim waits for. If that leaves the claim first, it holds.
//
// How long it holds rests on what the leader has said before, not on this event, which may
// be late: if little is left it had better ask.
func (c *claim) woken(w *wake, deleted bool) {
	defer close(w.rung)
	if !deleted || !c.begin() {
		return
	}
	defer c.end()
	lasts := c.d.link.proof().lasts
	if !c.isFirst(w) || min(time.Until(lasts), time.Until(w.asked.Add(c.req.TTL))) < c.req.TTL/2 {
		return
	}
	if g, err := c.granted(w.asked, lasts); err == nil {
		c.offer(w, g)
	}
}

// isFirst reports whether the claim holds now that the node that w listens to was deleted.
// New claims come behind it, and that node leaves none in its place, see endsAlone. Had its own
// been deleted first, that would have been told first, but only on the connection that both
// questions were asked on: what a new one tells of the time before is in no order.
func (c *claim) isFirst(w *wake) bool {
	_, greeting, _ := c.d.link.connection()
	return w.granted != nil && c.wake == w && c.isWatched() && c.watchedOn == greeting && w.greeting == greeting
}

// offer hands over a grant that nobody asked for just now, and nobody may be there to take.
func (c *claim) offer(w *wake, g driver.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offered = w.granted
	w.granted <- g
	c.timer.Reset(c.d.together(c.due()))
}

func (c *claim) isWatched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watched != nil
}

func (w *wake) hasRung() bool {
	select {
	case <-w.rung:
		return true
	default:
		return false
	}
}

// stopWaiting disarms the wake of the queue.
func (c *claim) stopWaiting() {
	if c.wake == nil {
		return
	}
	for _, path := range c.wake.paths {
		c.d.watches.forget(path, &c.wake.alarm)
	}
	c.wake = nil
}

// create makes the node of a claim, whose path begins with prefix, and returns its path.
// Whatever is missing above it is made on the way: the ensemble removes a container some time
// after its last child.
func (d *Driver) create(ctx context.Context, conn *zk.Conn, parent, prefix string, data []byte) (string, error) {
	for {
		path, err := conn.Create(prefix, data, zk.FlagEphemeral|zk.FlagSequence, d.acl)
		if !errors.Is(err, zk.ErrNoNode) || ctx.Err() != nil {
			return path, explain(err)
		}
		if err := d.createParent(conn, parent); err != nil {
			return "", err
		}
	}
}

// createParent makes the node of a resource.
func (d *Driver) createParent(conn *zk.Conn, path string) error {
	err := d.createContainer(conn, path)
	if !errors.Is(err, zk.ErrNoNode) {
		return explain(unlessThere(err))
	}
	for end := range d.root {
		if end > len(d.chroot) && d.root[end] == '/' {
			if err := d.createPersistent(conn, d.root[:end]); err != nil {
				return err
			}
		}
	}
	if len(d.root) > len(d.chroot) {
		if err := d.createPersistent(conn, d.root); err != nil {
			return err
		}
	}
	err = d.createContainer(conn, path)
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: %q", ErrNoChroot, d.chroot)
	}
	return explain(unlessThere(err))
}

func (d *Driver) createPersistent(conn *zk.Conn, path string) error {
	_, err := conn.Create(path, nil, zk.FlagPersistent, d.acl)
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: %q", ErrNoChroot, d.chroot)
	}
	return explain(unlessThere(err))
}

// createContainer makes a persistent node where the ensemble, older than 3.5, has no
// containers.
func (d *Driver) createContainer(conn *zk.Conn, path string) error {
	if !d.plain.Load() {
		d.creating.RLock()
		_, err := conn.CreateContainer(path, nil, zk.FlagContainer, d.acl)
		d.creating.RUnlock()
		if err == nil || !strings.HasSuffix(err.Error(), unimplemented) {
			return err
		}
		d.plain.Store(true)
	}
	_, err := conn.Create(path, nil, zk.FlagPersistent, d.acl)
	return err
}

// unimplemented is how go-zookeeper's text for ZooKeeper's code UNIMPLEMENTED ends; it has
// no error of its own for it.
const unimplemented = "unknown error: -6"

// unlessThere is err, unless it says that the node is there already.
func unlessThere(err error) error {
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
