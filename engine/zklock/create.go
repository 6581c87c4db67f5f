package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// create makes the node of a claim, whose path begins with prefix, and returns its path. It also
// makes missing nodes above it, because the ensemble removes a container some time after its last
// child.
//
// The claims are listed right behind the creation, without waiting for its answer. A session's
// requests are served in the order in which they are sent. If the list has the new node, it is as
// good as a later one: all nodes ahead of it are in the list, and a claim that holds goes on
// holding when they leave. If the list was served too early, the node is missing from it.
func (s *session) create(ctx context.Context, client *zk.Conn, parent, prefix string, data []byte) (path string, names []string, err error) {
	for {
		creation := func() (err error) {
			path, err = client.Create(prefix, data, zk.FlagEphemeral|zk.FlagSequence, s.d.acl())
			return err
		}
		// The list is usually requested while the creation waits for its answer.
		err = both(creation, func() error { names, _, _ = client.Children(parent); return nil })
		if !errors.Is(err, zk.ErrNoNode) || ctx.Err() != nil {
			return path, names, explain(err)
		}
		err = s.d.createBelow(client, parent, func() error { return s.createContainer(client, parent) })
		if err != nil {
			return "", nil, err
		}
	}
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

// createLimits makes the node above all limits of operators.
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
		err := s.creates(func() (string, error) {
			return client.CreateContainer(path, nil, zk.FlagContainer, d.acl())
		})
		if !isCode(err, unimplemented) {
			return err
		}
		d.plain.Store(true)
	}
	_, err := client.Create(path, nil, zk.FlagPersistent, d.acl())
	return err
}

// unlessThere returns err, or nil if it says that the node exists already.
func unlessThere(err error) error {
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
