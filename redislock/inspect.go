package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

const (
	// scanCount is how many keys one SCAN looks at: a millisecond of the server's time.
	scanCount = 1000
	// maxExact is the first number that Lua cannot count to in steps of one.
	maxExact = 1 << 53
)

// Inspect implements driver.Inspector. Foreign holders have no note and no fence.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.State, error) {
	k := d.keysOf(name)
	reply, err := d.run(ctx, scriptInspect, []string{
		k.lock, k.companion(kindHistory), k.companion(kindQueue), k.companion(kindDetails), k.companion(kindShares),
	})
	if err != nil {
		return driver.State{}, err
	}
	values, err := slice(reply, 3)
	if err != nil {
		return driver.State{}, err
	}
	st := driver.State{Resource: name, Fence: uint64(number(values[0]))}
	holders, _ := values[1].([]any)
	for h := range slices.Chunk(holders, 6) {
		st.Holders = append(st.Holders, driver.Holder{
			Owner: text(h[0]), Mode: modeOf(text(h[1])), Fence: uint64(number(h[2])),
			Held: ms(h[3]), Left: ms(h[4]), Note: text(h[5]),
		})
	}
	slices.SortStableFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	waiters, _ := values[2].([]any)
	for w := range slices.Chunk(waiters, 4) {
		st.Waiters = append(st.Waiters, driver.Waiter{Owner: text(w[0]), Mode: modeOf(text(w[1])), Waited: ms(w[2]), Note: text(w[3])})
	}
	return st, nil
}

func ms(v any) time.Duration { return max(time.Duration(number(v))*time.Millisecond, 0) }

// List implements driver.Inspector: it looks at all keys of all primaries, in small steps.
// What changes meanwhile may or may not be shown.
func (d *Driver) List(ctx context.Context, prefix string) ([]driver.State, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	names, err := d.names(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var states []driver.State
	for _, name := range names {
		st, err := d.Inspect(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(st.Holders)+len(st.Waiters) > 0 {
			states = append(states, st)
		}
	}
	return states, nil
}

// names returns, sorted, the names that begin with prefix and have a lock key or a queue.
func (d *Driver) names(ctx context.Context, prefix string) ([]string, error) {
	patterns := []string{glob(d.prefix+prefix) + "*", glob(d.prefix+mark+string(kindQueue)) + "*"}
	var mu sync.Mutex
	found := make(map[string]bool)
	err := d.eachPrimary(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		for _, pattern := range patterns {
			for scan := node.Scan(ctx, 0, pattern, scanCount).Iterator(); ; {
				if !scan.Next(ctx) {
					if scan.Err() != nil {
						return scan.Err()
					}
					break
				}
				if name, ok := d.nameOf(scan.Val()); ok && strings.HasPrefix(name, prefix) {
					mu.Lock()
					found[name] = true
					mu.Unlock()
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, explain(err)
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// glob is a pattern that matches s and nothing else.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Evict implements driver.Evictor. It works on foreign holders too, who are not told.
func (d *Driver) Evict(ctx context.Context, name, owner, reason string) error {
	if owner == "" || strings.Contains(owner, mark) {
		return fmt.Errorf("%w: nobody has such an owner", driver.ErrLost)
	}
	k := d.keysOf(name)
	reply, err := d.run(ctx, scriptEvict, []string{
		k.lock, k.companion(kindHistory), k.companion(kindQueue), k.companion(kindDetails), k.companion(kindShares), k.companion(kindLimits),
	}, owner, reason, d.historyLife(0))
	if err != nil {
		return err
	}
	fence, err := reply.Int64()
	switch {
	case err != nil:
		return fmt.Errorf("redislock: alien reply to evict: %w", err)
	case fence == 0:
		return fmt.Errorf("%w: it does not hold it", driver.ErrLost)
	}
	d.fences.saw(k.lock, uint64(fence))
	return nil
}

// RaiseFence implements driver.FenceRaiser. Fences stay below 2^53, where Redis stops
// counting exactly; the server's clock reaches that in the year 2255.
func (d *Driver) RaiseFence(ctx context.Context, name string, fence uint64) error {
	return d.raise(ctx, d.keysOf(name), fence, "")
}

// LiftFence implements driver.FenceLifter.
func (c *claim) LiftFence(ctx context.Context, fence uint64) error {
	return c.d.raise(ctx, c.keys, fence, c.req.Owner)
}

// raise raises the fence, if owner holds the lock or is empty.
func (d *Driver) raise(ctx context.Context, k keys, fence uint64, owner string) error {
	if fence >= maxExact-1 {
		return fmt.Errorf("redislock: fence %d is not below 2^53", fence)
	}
	reply, err := d.run(ctx, scriptRaise, []string{k.lock, k.companion(kindHistory)}, fence, d.historyLife(0), owner)
	if err != nil {
		return err
	}
	last, err := reply.Int64()
	switch {
	case err != nil:
		return errors.Join(errors.New("redislock: alien reply to raise"), err)
	case last < 0:
		return fmt.Errorf("%w: it does not hold it", driver.ErrLost)
	}
	d.fences.saw(k.lock, uint64(last))
	return nil
}
