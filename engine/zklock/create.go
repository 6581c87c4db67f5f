package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"
)

// create makes the node of a claim, whose path begins with prefix, and returns its path.
// Whatever is missing above it is made on the way: the ensemble removes a container some time
// after its last child.
//
// The claims are listed right behind the creation, without waiting for its answer: a session's
// requests are served in the order in which they are sent. A list with the new node in it is as
// good as one that is asked for later, because all that stand before it are there, and whoever
// holds goes on holding when they leave. If it was served too early the node is missing.
func (s *session) create(ctx context.Context, client *zk.Conn, parent, prefix string, data []byte) (path string, names []string, err error) {
	for {
		creation := func() (err error) {
			path, err = client.Create(prefix, data, zk.FlagEphemeral|zk.FlagSequence, s.d.acl())
			return err
		}
		// As a rule the list is asked for when the creation waits for its answer.
		err = both(creation, func() error { names, _, _ = client.Children(parent); return nil })
		if !errors.Is(err, zk.ErrNoNode) || ctx.Err() != nil {
			return path, names, explain(err)
		}
		if err := s.createParent(client, parent); err != nil {
			return "", nil, err
		}
	}
}

// createParent makes the node of a resource.
func (s *session) createParent(client *zk.Conn, path string) error {
	return s.d.createBelow(client, path, func() error { return s.createContainer(client, path) })
}

// createBelow makes a node and what is missing above it.
func (d *Driver) createBelow(client *zk.Conn, path string, create func() error) error {
	err := create()
	if errors.Is(err, zk.ErrNoNode) {
		if err = d.createAbove(client, path); err == nil {
			err = create()
		}
	}
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: %q", ErrNoChroot, d.opts.Chroot)
	}
	return explain(unlessThere(err))
}

// createLimits makes the node above all operators' limits.
func (d *Driver) createLimits(client *zk.Conn) error {
	return d.createBelow(client, d.limits(), func() error {
		_, err := client.Create(d.limits(), nil, zk.FlagPersistent, d.acl())
		return err
	})
}

// createAbove makes the missing nodes between the chroot and a node below the prefix.
func (d *Driver) createAbove(client *zk.Conn, path string) error {
	for end := len(d.opts.Chroot) + 1; end <= len(d.root); end++ {
		if path[end] != '/' {
			continue
		}
		if _, err := client.Create(path[:end], nil, zk.FlagPersistent, d.acl()); unlessThere(err) != nil {
			return err
		}
	}
	return nil
}

// createContainer makes a container, or a persistent node if the ensemble, older than 3.5, has no
// containers.
func (s *session) createContainer(client *zk.Conn, path string) error {
	d := s.d
	if !d.plain.Load() {
		err := s.creates(func() error {
			_, err := client.CreateContainer(path, nil, zk.FlagContainer, d.acl())
			return err
		})
		if err == nil || !strings.HasSuffix(err.Error(), unimplemented) {
			return err
		}
		d.plain.Store(true)
	}
	_, err := client.Create(path, nil, zk.FlagPersistent, d.acl())
	return err
}

// unimplemented is how go-zookeeper's text for ZooKeeper's code UNIMPLEMENTED ends; it has
// no error of its own for it.
const unimplemented = "unknown error: -6"

// unlessThere returns err, or nil if it says that the node exists already.
func unlessThere(err error) error {
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
