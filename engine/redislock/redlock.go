package redislock

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
)

// A Redlock is a driver over independent servers, more than half of which must agree.
type Redlock struct {
	*quorum.Driver
	nodes []*Driver
}

// NewRedlock returns a driver over clients. Each is a client of one server that is independent
// of the others. Their number must be odd and at least three. NewRedlock does no I/O, and Close
// closes no client. opts applies to every server, except that MinUptime defaults to [DefaultMinUptime]
// unless NoMinUptime is set: a server that loses its data would break the majority. Replicas and
// Rest must be 0. While two clients lead to the same server, calls to one of them fail with
// [quorum.ErrSameNode].
func NewRedlock(clients []redis.UniversalClient, opts *Options, majority *quorum.Options) (*Redlock, error) {
	o := *cmp.Or(opts, &Options{})
	if o.Replicas != 0 {
		return nil, errors.New("redislock: Replicas is for one server; of a Redlock the majority counts")
	}
	if o.Rest != 0 {
		return nil, errors.New("redislock: Rest is for one server, Sentinel or Cluster")
	}
	if o.MinUptime == 0 && !o.NoMinUptime {
		o.MinUptime = DefaultMinUptime
	}
	r := &Redlock{}
	voters := &voters{all: make(map[*handshake]voter)}
	var nodes []driver.Driver
	for _, client := range clients {
		d, err := New(client, &o)
		if err != nil {
			return nil, err
		}
		d.pipelines.voters = voters
		r.nodes, nodes = append(r.nodes, d), append(nodes, d)
	}
	var err error
	r.Driver, err = quorum.New(nodes, majority)
	return r, err
}

// voters are the connections of a Redlock's nodes. An address may lead to another server than
// before, which must not vote for two nodes. A driver by itself has none: nil.
type voters struct {
	mu  sync.Mutex
	all map[*handshake]voter // guarded by mu
}

// A voter is the server behind a connection of a node.
type voter struct {
	node  *pipelines
	runID string // "": unknown
}

// add returns [quorum.ErrSameNode] if another node is connected to the same server.
func (v *voters) add(h *handshake, one voter) error {
	if v == nil || one.runID == "" {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, other := range v.all {
		if other.runID == one.runID && other.node != one.node {
			return fmt.Errorf("redislock: %w", quorum.ErrSameNode)
		}
	}
	v.all[h] = one
	return nil
}

// remove is called when the connection has ended.
func (v *voters) remove(h *handshake) {
	if v != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.all, h)
	}
}

// Close waits for calls in flight and ends the servers' subscriptions.
func (r *Redlock) Close() error {
	err := r.Driver.Close()
	for _, d := range r.nodes {
		err = errors.Join(err, d.Close())
	}
	return err
}
