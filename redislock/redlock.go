package redislock

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/quorum"
)

// A Redlock is a driver over independent servers, of which more than half must agree.
type Redlock struct {
	*quorum.Driver
	nodes []*Driver
}

// NewRedlock returns a driver over clients, each of one server that knows nothing of the
// others: an odd number, at least three. It does no I/O and closes none of them. opts is
// for every server; Memory 0 is DefaultMemory there, because a server that forgets would
// break the majority, and negative is off. Replicas must be 0.
func NewRedlock(clients []redis.UniversalClient, opts *Options, majority *quorum.Options) (*Redlock, error) {
	return newRedlock(clients, New, opts, majority)
}

// OpenRedlock is NewRedlock with connections of the driver's own, as Open's; Close closes
// them.
func OpenRedlock(servers []*redis.Options, opts *Options, majority *quorum.Options) (*Redlock, error) {
	return newRedlock(servers, Open, opts, majority)
}

func newRedlock[S any](servers []S, node func(S, *Options) (*Driver, error), opts *Options, majority *quorum.Options) (*Redlock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Replicas != 0 {
		return nil, errors.New("redislock: Replicas is for one server; of a Redlock the majority counts")
	}
	switch {
	case o.Memory == 0:
		o.Memory = DefaultMemory
	case o.Memory < 0:
		o.Memory = time.Duration(0)
	}
	r := &Redlock{}
	var nodes []driver.Driver
	for _, server := range servers {
		d, err := node(server, &o)
		if err != nil {
			return nil, errors.Join(err, r.closeNodes())
		}
		r.nodes, nodes = append(r.nodes, d), append(nodes, d)
	}
	var err error
	if r.Driver, err = quorum.New(nodes, majority); err != nil {
		return nil, errors.Join(err, r.closeNodes())
	}
	return r, nil
}

// Close waits for calls on their way and ends the servers' subscriptions.
func (r *Redlock) Close() error {
	return errors.Join(r.Driver.Close(), r.closeNodes())
}

func (r *Redlock) closeNodes() error {
	var errs []error
	for _, d := range r.nodes {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
