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
	path, err := c.d.create(ctx, conn, c.parent, namePrefix(&c.req, c.d.exclusive), details{c.req.Owner, c.req.Note}.encode())
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
	c.node, c.session, c.over = name, 0, false
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
	paths []string // the nodes of which one must go before it can be granted
	alarm alarm
	rung  chan struct{}
}

// await has the claim woken when one of ahead goes. errGone: one is gone already. It also
// returns the content of the first of them, if it has asked for it.
func (c *claim) await(conn *zk.Conn, ahead []node) (woken <-chan struct{}, seen content, err error) {
	paths := make([]string, len(ahead))
	for i, n := range ahead {
		paths[i] = c.parent + "/" + n.name
	}
	if w := c.wake; w != nil && slices.Equal(w.paths, paths) && !w.hasRung() {
		return w.rung, seen, nil // armed before, and they are all there
	}
	c.stopWaiting()
	w := &wake{paths: paths, rung: make(chan struct{})}
	w.alarm.ring = func() { close(w.rung) }
	c.wake = w
	errs := make([]error, len(paths))
	var all sync.WaitGroup
	for i, path := range paths[1:] {
		all.Go(func() { _, errs[i+1] = c.d.watches.listen(conn, path, &w.alarm) })
	}
	seen, errs[0] = c.d.watches.listen(conn, paths[0], &w.alarm)
	all.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		c.stopWaiting()
		return nil, seen, errs[i]
	}
	return w.rung, seen, nil
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

// create makes the node of a claim and returns its path. Whatever is missing above it is
// made on the way: the ensemble removes a container some time after its last child.
func (d *Driver) create(ctx context.Context, conn *zk.Conn, parent, prefix string, data []byte) (string, error) {
	for {
		path, err := conn.Create(parent+"/"+prefix, data, zk.FlagEphemeral|zk.FlagSequence, d.acl)
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
