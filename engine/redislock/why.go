package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// whyTTL is how long the server keeps the reason of an eviction at least; else until the lease would have
	// ended, for its holder may renew no later.
	whyTTL = 30 * time.Second
	// whyWithin is how long a lease that is known to be over waits for the reason.
	whyWithin = time.Second
)

var scriptWhy = &script{name: "why.lua"}

// errNotHeld is of a lease that the server does not have any more, for a reason that it does not tell.
var errNotHeld = fmt.Errorf("%w: it expired, or its key was deleted or taken over", driver.ErrLost)

// why asks for what c's lease with that fence, which the server does not have any more, has come to. Its message
// may not have come yet, or nobody heard it.
func (c *claim) why(ctx context.Context, fence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, whyWithin)
	defer cancel()
	why := c.d.pipelines.newCall(scriptWhy)
	why.args(1, string(c.keys.appendKey(nil, kindWhy, c.req.Owner))) // alone: while a slot moves, keys are in different places
	a, err := c.d.ask(ctx, c.keys.lock, why)
	if err != nil {
		return errNotHeld
	}
	of, reason, ok := strings.Cut(text(a.reply), " ")
	if !ok || of != strconv.FormatUint(fence, 10) {
		return errNotHeld
	}
	return driver.Evicted(reason)
}
