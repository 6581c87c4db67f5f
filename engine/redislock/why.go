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
	// whyTTL is how long the server keeps the reason of an eviction at least. It keeps it longer if
	// the lease would have lasted longer, because its holder may not renew before.
	whyTTL = 30 * time.Second
	// whyWithin is how long to wait for the reason once the lease is known to be over.
	whyWithin = time.Second
)

var scriptWhy = &script{name: "why.lua"}

// errNotHeld is the error for a lease that the server does not have any more, if the server has no
// reason.
var errNotHeld = fmt.Errorf("%w: it expired, or its key was deleted or taken over", driver.ErrLost)

// errReleased is the error for a second release.
var errReleased = fmt.Errorf("%w: it was released", driver.ErrLost)

// why returns why c's lease with that fence, which the server does not have any more, is over. It
// asks the server, because the message may not have come yet or was missed.
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
