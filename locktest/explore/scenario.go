package explore

import (
	"github.com/leasehold-go/leasehold/driver"
)

// A scenario says what the clients do.
type scenario struct {
	name  string
	needs func(f driver.Features) bool // features that the engine must have; nil: none
	does  string                       // a description for people
	apart bool                         // each client has its own Locker, so that the clients of a process contend at the engine
	asks  bool                         // claims ask whether others wait; each client has its own Locker
	kept  float64                      // Options.Keep in TTLs; requires asks
	// scripts returns the clients' scripts of each process. It creates what they share.
	scripts func() [][]func(c *client)
}

func (sc *scenario) fits(f driver.Features) bool { return sc.needs == nil || sc.needs(f) }

// of returns scripts that share nothing.
func of(scripts ...[]func(c *client)) func() [][]func(c *client) {
	return func() [][]func(c *client) { return scripts }
}

type process = []func(c *client)

// holds returns a script that acquires, holds for the given number of TTLs and releases, n times.
func holds(n int, ttls float64, w wish) func(c *client) {
	return func(c *client) {
		for range n {
			l := c.acquire(true, w)
			c.keep(l, ttls)
			c.release(l)
		}
	}
}

// holdsAll is holds for both resources together.
func holdsAll(n int, ttls float64) func(c *client) {
	return func(c *client) {
		for range n {
			all := c.acquireAll()
			if all != nil {
				c.waits(c.world.ttl(ttls), all.Context().Done())
			}
			c.releaseAll(all)
		}
	}
}

// keeps returns a script that holds the other resource until the end, for the given number of TTLs
// at a time.
func keeps(ttls int) func(c *client) {
	return func(c *client) {
		l := c.acquire(true, wish{of: other, ttls: ttls})
		c.outstay()
		c.release(l)
	}
}

// after delays a script.
func after(ttls float64, script func(c *client)) func(c *client) {
	return func(c *client) {
		c.pause(ttls)
		script(c)
	}
}

// looks inspects the resource three times.
func looks(c *client) {
	for range 3 {
		c.look()
		c.pause(0.2)
	}
}

var scenarios = []scenario{
	{
		name: "two", does: "two processes acquire and release twice",
		scripts: of(process{holds(2, 0.5, wish{})}, process{holds(2, 0.5, wish{})}),
	},
	{
		name: "three", does: "three processes acquire once and hold for longer than the TTL",
		scripts: of(process{holds(1, 1.2, wish{})}, process{holds(1, 0.2, wish{})}, process{holds(1, 0.2, wish{})}),
	},
	{
		name: "crowd", does: "one process holds for so long that places must be kept, for which two of a second wait apart, and one of a third", apart: true,
		scripts: of(process{holds(1, 2.5, wish{})}, process{holds(1, 0.2, wish{}), holds(1, 0.2, wish{})}, process{holds(1, 0.2, wish{})}),
	},
	{
		name: "handover", does: "two clients of one process and one of another release at once, twice",
		scripts: of(process{holds(2, 0.001, wish{}), holds(2, 0.001, wish{})}, process{holds(2, 0.001, wish{})}),
	},
	{
		name: "crowds", does: "two clients each of two processes and one of a third acquire once, each in a Locker of its own",
		needs: func(f driver.Features) bool { return f.Fair }, // because claims must have places
		apart: true,
		scripts: of(process{holds(1, 0.3, wish{}), holds(1, 0.2, wish{})}, process{holds(1, 0.2, wish{}), holds(1, 0.2, wish{})},
			process{holds(1, 0.001, wish{})}),
	},
	{
		name: "try", does: "one process holds twice, another tries four times without waiting",
		scripts: of(process{holds(2, 0.3, wish{})}, process{func(c *client) {
			for range 4 {
				l := c.acquire(false, wish{})
				c.keep(l, 0.1)
				c.release(l)
				c.pause(0.2)
			}
		}}),
	},
	{
		name: "together", does: "one process holds two leases that are renewed together, for each of which another waits",
		scripts: of(process{holds(1, 1.2, wish{}), holds(1, 1.2, wish{of: other})},
			process{holds(1, 0.2, wish{}), holds(1, 0.2, wish{of: other})}),
	},
	{
		name: "pairs", does: "two processes acquire and release two resources twice, at the same time, and one looks who holds",
		scripts: of(process{holds(2, 0.3, wish{}), holds(2, 0.3, wish{of: other}), looks},
			process{holds(2, 0.3, wish{}), holds(2, 0.3, wish{of: other})}),
	},
	{
		name: "both", does: "two processes acquire two resources at once, twice, and a third one of them and the other by itself",
		scripts: of(process{holdsAll(2, 0.2)}, process{after(0.1, holdsAll(2, 0.2))},
			process{after(0.15, holds(1, 0.2, wish{of: other})), after(0.5, holds(1, 0.2, wish{}))}),
	},
	{
		name: "left", does: "one process keeps a lease, and leaves a second, of a longer TTL since, to its end, and another wants that",
		needs: func(f driver.Features) bool { return f.SessionTTL == 0 },
		scripts: of(process{keeps(2), func(c *client) {
			l := c.acquire(true, wish{noRenew: true})
			c.keep(l, 0.4)
			c.extend(l, 2)
		}}, process{after(2, holds(1, 0.2, wish{}))}),
	},
	{
		name: "again", does: "one process keeps a lease and wants a second twice, first without waiting, and another wants that for longer",
		scripts: of(process{keeps(1), after(0.1, func(c *client) {
			l := c.acquire(false, wish{})
			c.keep(l, 0.1)
			c.release(l)
			c.pause(0.5)
			holds(1, 0.2, wish{})(c)
		})}, process{after(0.65, holds(1, 1.2, wish{}))}),
	},
	{
		name: "linger", does: "one process releases a lease that lingers, twice, and another wants it",
		scripts: of(process{func(c *client) {
			holds(2, 0.2, wish{atLeast: 0.8})(c)
			c.pause(0.8)
		}}, process{holds(2, 0.2, wish{})}),
	},
	{
		name: "shared", does: "three share two slots, and one wants to be alone",
		needs: func(f driver.Features) bool { return f.Shared },
		scripts: of(process{holds(1, 0.4, wish{limit: 2}), holds(1, 0.2, wish{})},
			process{holds(1, 0.4, wish{limit: 2})}, process{holds(1, 0.4, wish{limit: 2})}),
	},
	{
		name: "readers", does: "two share, one is alone before they share again",
		needs:   func(f driver.Features) bool { return f.Shared },
		scripts: of(process{holds(2, 0.4, wish{shared: true})}, process{holds(1, 0.3, wish{}), holds(1, 0.3, wish{shared: true})}),
	},
	{
		name: "weights", does: "four share by weight, a heavy one ahead of light ones, while an operator lowers the limit below its weight, raises it and removes it",
		needs: func(f driver.Features) bool { return f.Weights && f.Limits },
		apart: true,
		scripts: of(process{holds(2, 0.3, weighing(1)), after(0.22, holds(1, 0.2, weighing(1)))}, process{holds(2, 0.4, weighing(2))},
			process{after(0.2, func(c *client) {
				holds(1, 0.3, weighing(3))(c)
				c.pause(0.5)
				holds(1, 0.3, weighing(3))(c)
			}), func(c *client) {
				c.pause(0.25)
				for _, limit := range []int{2, 3, 0} {
					c.setLimit(limit)
					c.pause(0.4)
				}
			}}),
	},
	{
		name: "evict", does: "two processes acquire twice, one of them for two clients, and an operator evicts whoever holds, twice",
		scripts: of(process{holds(2, 0.6, wish{}), holds(1, 0.2, wish{})}, process{holds(2, 0.6, wish{})}, process{func(c *client) {
			c.pause(0.1)
			c.evict()
			c.pause(0.3)
			c.evict()
		}}),
	},
	{
		name: "extend", does: "one extends a lease that is not renewed, for longer and for shorter, beside another",
		scripts: of(process{func(c *client) {
			l := c.acquire(true, wish{noRenew: true})
			c.keep(l, 0.4)
			c.extend(l, 1.5)
			c.keep(l, 0.4)
			c.extend(l, 0.5)
			c.keep(l, 0.2)
			c.extend(l, 1)
			c.keep(l, 0.4)
			c.extend(l, 0.5)
			c.keep(l, 0.9)
			c.release(l)
		}, holds(1, 0.2, wish{})}, process{holds(2, 0.2, wish{})}),
	},
	{
		name: "resume", does: "one leaves its lease to a second process, beside a third",
		needs: func(f driver.Features) bool { return f.Resumes },
		scripts: func() [][]func(c *client) {
			left := make(chan *lease, 1)
			return [][]func(c *client){
				{func(c *client) {
					l := c.acquire(true, wish{noRenew: true})
					c.keep(l, 0.3)
					left <- c.leave(l)
				}},
				{func(c *client) {
					from := <-left
					if from == nil {
						return
					}
					l := c.resume(from.Owner(), from)
					c.keep(l, 0.5)
					c.release(l)
				}},
				{holds(2, 0.2, wish{})},
			}
		},
	},
	{
		name: "recall", does: "three processes acquire, of which two release when others wait",
		needs: func(f driver.Features) bool { return f.Tells },
		apart: true, asks: true,
		scripts: of(process{yields(0.1)}, process{after(0.4, yields(0.1))}, process{after(0.6, holds(1, 0.1, wish{}))}),
	},
	{
		name: "kept", does: "one process locks again what it keeps, an operator evicts it, and another process waits twice and only tries once",
		needs: func(f driver.Features) bool { return f.Keeps && f.Tells && f.Fencing },
		apart: true, asks: true, kept: 0.25,
		scripts: of(process{func(c *client) {
			for range 7 {
				holds(1, 0.05, wish{})(c)
				c.pause(0.2)
			}
		}}, process{after(0.56, holds(2, 0.05, wish{})), after(1.1, func(c *client) {
			l := c.acquire(false, wish{})
			c.keep(l, 0.05)
			c.release(l)
		})}, process{after(0.1, (*client).evict)}),
	},
	{
		name: "inherit", does: "one leaves to a second process a lease that was handed over to it, beside a third",
		needs: func(f driver.Features) bool { return f.Resumes },
		scripts: func() [][]func(c *client) {
			left, back := make(chan *lease, 1), make(chan struct{})
			return [][]func(c *client){
				{holds(1, 0.001, wish{}), func(c *client) {
					l := c.acquire(true, wish{})
					c.keep(l, 0.1)
					left <- c.leave(l)
					<-back
					c.release(l) // if nobody has released it, it is still renewed
				}},
				{func(c *client) {
					defer close(back)
					from := <-left
					if from == nil {
						return
					}
					l := c.resume(from.Owner(), from)
					c.keep(l, 0.5)
					c.release(l)
				}},
				{holds(1, 0.2, wish{})},
			}
		},
	},
}
