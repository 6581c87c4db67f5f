package zklock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// The cause of a context is its caller's, such as the loss of another lease: it does not say that the node has gone.
func TestCauseThatIsALossForgetsNoNode(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{errors.New("other"), fmt.Errorf("%w: of the lease around it", driver.ErrLost)} {
		d, err := New([]string{"127.0.0.1:1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		s, err := d.with(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		c := newClaim(s, driver.Request{Resource: "r", Owner: "o", TTL: s.ttl})
		c.node = &own{name: "_c_guid-lock-0000000007", session: 1} // made, and refused
		c.mu.Lock()
		c.become(&queued{})
		c.mu.Unlock()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		s.mu.Lock()
		s.conn.state = connecting
		s.mu.Unlock()
		if err := c.leave(ctx); err == nil || c.node == nil {
			t.Errorf("cause %q: %v; the node is forgotten: %v", cause, err, c.node == nil)
		}
	}
}
