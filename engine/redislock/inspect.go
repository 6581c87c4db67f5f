package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// Inspect implements [driver.Operator]. Foreign holders have no note and no fence. If data is
// damaged, it returns [ErrDamaged] and the State as far as it could be read.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	values, err := d.show(ctx, name)
	if err != nil {
		return driver.State{}, err
	}
	return stateOf(name, values[0])
}

// show runs inspect.lua for names, which must all be on one server.
func (d *Driver) show(ctx context.Context, names ...string) ([]any, error) {
	kinds := []byte{kindHistory, kindQueue, kindDetails, kindShares, kindBeats, kindWeights, kindMost}
	inspect := d.pipelines.newCall(scriptInspect)
	inspect.args(len(names) * (1 + len(kinds)))
	for _, name := range names {
		inspect.moreKeys(d.keysOf(name), "", kinds...)
	}
	inspect.args(placeTTL)
	reply, err := d.ask(ctx, d.keysOf(names[0]).lock, inspect)
	if err != nil {
		return nil, err
	}
	return reply.slice(len(names))
}

// stateOf returns the state of name from the reply of inspect.lua.
func stateOf(name string, value any) (driver.State, error) {
	if why, refused := value.(refusal); refused {
		return driver.State{}, explain(why)
	}
	values, err := answer{reply: value}.slice(5)
	if err != nil {
		return driver.State{}, err
	}
	st := driver.State{Resource: name, Fence: driver.FenceOf(max(number(values[0]), 0)), Limit: int(min(max(number(values[4]), 0), driver.MaxWeight))}
	holders, err := rows(values[1], 7)
	for _, h := range holders {
		st.Holders = append(st.Holders, driver.Holder{
			Owner: driver.OwnerOf(text(h[0])), Mode: modeOf(text(h[1])), Weight: weightOf(text(h[1])), Limit: int(max(number(h[2]), 0)),
			Fence: driver.FenceOf(max(number(h[3]), 0)), Held: ms(h[4]), Left: ms(h[5]), Note: text(h[6]),
		})
	}
	slices.SortStableFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	waiters, errW := rows(values[2], 4)
	for _, w := range waiters {
		st.Waiters = append(st.Waiters, driver.Waiter{Owner: driver.OwnerOf(text(w[0])), Mode: modeOf(text(w[1])), Weight: weightOf(text(w[1])), Waited: ms(w[2]), Note: text(w[3])})
	}
	damaged, errD := rows(values[3], 1)
	if err = errors.Join(err, errW, errD); err == nil && len(damaged) > 0 {
		err = fmt.Errorf("%w: %s of %q", ErrDamaged, text(damaged[0][0]), name)
	}
	return st, err
}

// rows splits a list of replies into rows of n.
func rows(v any, n int) ([][]any, error) {
	all, ok := v.([]any)
	if !ok || len(all)%n != 0 {
		return nil, unexpectedReply(all)
	}
	return slices.Collect(slices.Chunk(all, n)), nil
}

// ms returns a number of milliseconds as a Duration. A number that is negative or too large becomes
// 0, unknown.
func ms(v any) time.Duration {
	n := number(v)
	if n < 0 || n > int64(math.MaxInt64/time.Millisecond) {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// Evict implements [driver.Operator]. It also evicts foreign holders, which are not notified. An
// empty owner ends a hold that lingers.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	if strings.Contains(owner, mark) {
		return fmt.Errorf("%w: nobody has such an owner", driver.ErrLost)
	}
	k := d.keysOf(name)
	evict := d.pipelines.newCall(scriptEvict)
	evict.keys(k, owner, kindHistory, kindQueue, kindDetails, kindShares, kindLimits, kindWhy, kindGone, kindBeats, kindWeights, kindMost)
	evict.args(owner, reason, d.historyLife(0), whyTTL, goneTTL, placeTTL)
	fence, err := d.askNumber(ctx, k.lock, evict, "evict")
	switch {
	case err != nil:
		return err
	case fence == 0:
		return fmt.Errorf("%w: it does not hold it", driver.ErrLost)
	}
	d.known.saw(k.lock, uint64(fence))
	return nil
}

// RaiseFence implements [driver.Operator]. The server's number stays below 2^53, up to which
// Redis counts exactly; its clock reaches that in the year 2255.
func (d *Driver) RaiseFence(ctx context.Context, name string, fence uint64) error {
	if err := driver.CheckRaise(fence); err != nil {
		return fmt.Errorf("redislock: %w", err)
	}
	return d.raise(ctx, d.keysOf(name), fence, "")
}

// LiftFence implements driver.FenceLifter.
func (c *claim) LiftFence(ctx context.Context, fence uint64) error {
	return c.d.raise(ctx, c.keys, fence, c.req.Owner)
}

// raise raises the fence, if owner is empty or holds the lock.
func (d *Driver) raise(ctx context.Context, k keys, fence uint64, owner string) error {
	number := driver.NumberOf(fence)
	if number >= maxExact-1 {
		return fmt.Errorf("redislock: %w: fence %d leaves no room below 2^63", driver.ErrUnsupported, fence)
	}
	raise := d.pipelines.newCall(scriptRaise)
	raise.keys(k, owner, kindHistory)
	raise.args(int64(number), d.historyLife(0), owner)
	last, err := d.askNumber(ctx, k.lock, raise, "raise")
	switch {
	case err != nil:
		return err
	case last < 0:
		return fmt.Errorf("%w: it does not hold it", driver.ErrLost)
	}
	d.known.saw(k.lock, uint64(last))
	return nil
}

// SetLimit implements [driver.Operator]. The limit has a key of its own, which does not expire.
// Programs of versions that know no limits ignore it.
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if err := driver.CheckLimit(limit); err != nil {
		return err
	}
	k := d.keysOf(name)
	set := d.pipelines.newCall(scriptLimit)
	set.keys(k, "", kindQueue, kindDetails, kindShares, kindLimits, kindBeats, kindWeights, kindMost)
	set.args(limit, placeTTL)
	_, err := d.askNumber(ctx, k.lock, set, "limit")
	return err
}
