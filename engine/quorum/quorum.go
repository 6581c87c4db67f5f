// Package quorum combines several independent engines into one driver: a claim is granted when
// more than half of them grant it. Over N independent Redis servers this is the Redlock
// algorithm, with fencing tokens added.
//
// A minority of the nodes may be down, hung or cut off. A quorum cannot survive a node that forgets
// a grant while it still counts: see Options.MinUptime of package redislock.
package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/life"
)

// DefaultNodeTimeout is the default of [Options.NodeTimeout]. The Redlock page of the Redis manual
// gives 5 to 50 ms for leases of ten seconds.
const DefaultNodeTimeout = 50 * time.Millisecond

// Options configure a Driver. The zero value of each field is its default.
type Options struct {
	// NodeTimeout bounds each call to one node, releases included, from when it is sent; 0:
	// DefaultNodeTimeout. A slow or hung node delays each of the two rounds of a grant by at
	// most this, and not at all once the others decide. Renewals wait longer if they must, up to
	// the limit of their caller. So do lists, up to half of their caller's time, unless most nodes
	// answer sooner.
	NodeTimeout time.Duration
	// NoFencing omits the second round, which makes fences grow over all majorities.
	// Features.Fencing is then false.
	NoFencing bool
}

// ErrSameNode: two of the drivers use the same server, whose vote would count twice.
var ErrSameNode = errors.New("two nodes are the same server")

// A Driver serves exclusive claims by majority. It is safe for concurrent use.
type Driver struct {
	nodes    []*node
	majority int
	features driver.Features
	clock    *boottime.Clock // for grants; tests replace it
	life     *life.Life      // ends when the driver is closed

	mu  sync.Mutex
	ids map[string]int // guarded by mu; the number of the node with each id
}

// New returns a driver over nodes. Their number must be odd and at least three: an even number
// survives no more failures than one less. It does no I/O, and Close closes no node. Nodes that
// are a [driver.Identifier] are compared at their first use.
func New(nodes []driver.Driver, opts *Options) (*Driver, error) {
	o := *cmp.Or(opts, &Options{})
	o.NodeTimeout = cmp.Or(o.NodeTimeout, DefaultNodeTimeout)
	if len(nodes) < 3 || len(nodes)%2 == 0 {
		return nil, fmt.Errorf("quorum: %d nodes: want an odd number, at least 3", len(nodes))
	}
	if o.NodeTimeout < 0 {
		return nil, fmt.Errorf("quorum: NodeTimeout %v is negative", o.NodeTimeout)
	}
	d := &Driver{clock: boottime.Machine(), life: life.New(), majority: len(nodes)/2 + 1, ids: make(map[string]int)}
	d.features = driver.Features{Engine: "quorum", Fencing: !o.NoFencing, Bars: true}
	for i, n := range nodes {
		for j, other := range nodes[:i] {
			if n == other {
				return nil, fmt.Errorf("quorum: %w: %d and %d", ErrSameNode, j+1, i+1)
			}
		}
		if v := reflect.ValueOf(n); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, fmt.Errorf("quorum: node %d is nil", i+1)
		}
		f := n.Features()
		one := newNode(d, i, n, o.NodeTimeout)
		if !o.NoFencing && !(f.Fencing && f.Raises && one.operator != nil) {
			return nil, fmt.Errorf("quorum: node %d: fencing is %w; NoFencing does without", i+1, driver.ErrUnsupported)
		}
		if f.MinTTL > d.features.MinTTL {
			d.features.MinTTL, d.features.LeastBy = f.MinTTL, f.LeastBy
		}
		d.features.Bars = d.features.Bars && f.Bars
		d.features.Step = max(d.features.Step, f.Step)
		d.nodes = append(d.nodes, one)
	}
	if least := 2 * o.NodeTimeout; least > d.features.MinTTL {
		d.features.MinTTL, d.features.LeastBy = least, fmt.Sprintf("twice the NodeTimeout of %v", o.NodeTimeout)
	}
	return d, nil
}

// Features implements [driver.Driver]: exclusive claims, and fencing unless NoFencing is set.
// Waiters poll, because each node has a queue of its own, and their orders may differ.
func (d *Driver) Features() driver.Features { return d.features }

// Claim implements [driver.Driver]. It returns [driver.ErrUnsupported] for shared claims.
func (d *Driver) Claim(req driver.Request) (driver.Claim, error) {
	if req.Mode != driver.Exclusive {
		return nil, fmt.Errorf("%w: shared claims on a quorum", driver.ErrUnsupported)
	}
	over := make(chan struct{}) // there is no call before the first one
	close(over)
	c := &claim{d: d, req: req}
	for _, n := range d.nodes {
		part := &part{node: n, last: over}
		ask := req
		ask.Wanted = nil  // no claim has a place here
		ask.Queue = false // each node's queue could have another head
		ask.Lost = func(cause error) { c.partLost(part, cause) }
		inner, err := n.driver.Claim(ask)
		if err != nil {
			return nil, err
		}
		part.claim = inner
		c.parts = append(c.parts, part)
	}
	return c, nil
}

// Close waits for calls to nodes that are in flight, each for at most NodeTimeout. It does not
// close the nodes.
func (d *Driver) Close() error {
	d.life.End()
	d.life.Wait()
	return nil
}

// claimID records that node i is the server id.
func (d *Driver) claimID(i int, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other, taken := d.ids[id]; taken && other != i {
		return fmt.Errorf("%w: %d and %d", ErrSameNode, other+1, i+1)
	}
	d.ids[id] = i
	return nil
}
