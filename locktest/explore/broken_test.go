package explore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// breakage is a driver in memory with a fault.
type breakage struct {
	name     string
	scenario string
	says     string // a part of what the explorer finds
	above    bool   // the fault is in the process, and not at the engine
	plain    bool   // it is found without a change
	breaks   func(d driver.Driver) driver.Driver
}

// A brokenDriver breaks the claims of a driver.
type brokenDriver struct {
	driver.Driver
	try     func(c driver.Claim, ctx context.Context) (driver.Grant, error)
	renew   func(c driver.Claim, ctx context.Context, ttl time.Duration) (driver.Grant, error)
	release func(c driver.Claim, ctx context.Context, how driver.End) error
}

type brokenClaim struct {
	driver.Claim
	d *brokenDriver
}

func (d *brokenDriver) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return &brokenClaim{c, d}, err
}

func (c *brokenClaim) Try(ctx context.Context) (driver.Grant, error) {
	if c.d.try == nil {
		return c.Claim.Try(ctx)
	}
	return c.d.try(c.Claim, ctx)
}

func (c *brokenClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	if c.d.renew == nil {
		return c.Claim.Renew(ctx, ttl)
	}
	return c.d.renew(c.Claim, ctx, ttl)
}

func (c *brokenClaim) Release(ctx context.Context, how driver.End) error {
	if c.d.release == nil {
		return c.Claim.Release(ctx, how)
	}
	return c.d.release(c.Claim, ctx, how)
}

var breakages = []breakage{
	{"grantsMore", "three", "believes to hold until", true, false, func(d driver.Driver) driver.Driver {
		return &brokenDriver{Driver: d, try: func(c driver.Claim, ctx context.Context) (driver.Grant, error) {
			g, err := c.Try(ctx)
			g.TTL += g.TTL
			return g, err
		}}
	}},
	{"resumesForLonger", "resume", "believes to hold until", true, true, func(d driver.Driver) driver.Driver {
		return &brokenDriver{Driver: d, renew: func(c driver.Claim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.Renew(ctx, ttl)
			g.TTL += g.TTL
			return g, err
		}}
	}},
	{"renewsWhatIsOver", "three", "whose lease has", false, false, func(d driver.Driver) driver.Driver {
		last := make(map[driver.Claim]uint64)
		return &brokenDriver{Driver: d, renew: func(c driver.Claim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.Renew(ctx, 2*ttl)
			if errors.Is(err, driver.ErrLost) {
				return driver.Grant{TTL: ttl, Fence: last[c]}, nil
			}
			last[c], g.TTL = g.Fence, 4*ttl
			return g, err
		}}
	}},
	{"releasesNothing", "two", "still wait", false, false, func(d driver.Driver) driver.Driver {
		return &brokenDriver{Driver: d, release: func(c driver.Claim, ctx context.Context, _ driver.End) error {
			_, err := c.Renew(ctx, time.Hour)
			return err
		}}
	}},
	{"sameFence", "two", "does not grow", false, false, func(d driver.Driver) driver.Driver {
		return &brokenDriver{Driver: d, try: func(c driver.Claim, ctx context.Context) (driver.Grant, error) {
			g, err := c.Try(ctx)
			g.Fence = 1 << 20
			return g, err
		}, renew: func(c driver.Claim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
			g, err := c.Renew(ctx, ttl)
			g.Fence = 1 << 20
			return g, err
		}}
	}},
	{"alwaysReleased", "three", "says", false, false, func(d driver.Driver) driver.Driver {
		return &brokenDriver{Driver: d, release: func(c driver.Claim, ctx context.Context, how driver.End) error {
			if err := c.Release(ctx, how); !errors.Is(err, driver.ErrLost) {
				return err
			}
			return nil
		}}
	}},
	{"losesAtRenewal", "three", "is lost though nothing happened", true, true, losesAtRenewal},
	{"failsToExtend", "extend", "Extend of c1 fails though nothing happened", true, true, losesAtRenewal},
	{"failsToRelease", "two", "Release of c1 fails though nothing happened", true, true, func(d driver.Driver) driver.Driver {
		return &brokenDriver{Driver: d, release: func(c driver.Claim, ctx context.Context, how driver.End) error {
			return cmp.Or(c.Release(ctx, how), driver.ErrLost)
		}}
	}},
}

func losesAtRenewal(d driver.Driver) driver.Driver {
	return &brokenDriver{Driver: d, renew: func(driver.Claim, context.Context, time.Duration) (driver.Grant, error) {
		return driver.Grant{}, driver.ErrLost
	}}
}

// TestFinds explores drivers that are broken: each is found with one change, or with none, and so
// is a schedule of few events that shows it.
func TestFinds(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			h := Harness{Changes: 1, New: func(w *World) func(*Process) driver.Driver {
				server := memory.NewServer()
				return func(p *Process) driver.Driver {
					if b.above {
						return b.breaks(p.Link("", server.Connect()))
					}
					return p.Link("", b.breaks(server.Connect()))
				}
			}}
			found := finds(t, h, b.scenario, b.says)
			if b.plain && len(found.changes) > 0 {
				t.Errorf("found with %v, and not without changes", found.changes)
			}
			name, changes, err := decode(found.encode(b.scenario))
			if err != nil || name != b.scenario || !slices.Equal(changes, found.changes) {
				t.Errorf("%s is read as %s %v, %v", found.encode(b.scenario), name, changes, err)
			}
			t.Log(found.encode(b.scenario), found.violation)
		})
	}
}

// finds returns the first schedule that breaks a promise, which must be the one that says so.
func finds(t *testing.T, h Harness, name, says string) *finding {
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })
	s := newSearch(t, h.withDefaults(), scenarios[i])
	found := s.inOrder()
	if found == nil || !strings.Contains(found.violation, says) {
		t.Fatalf("found %v after %d schedules, want one that says %q", found, s.figures.schedules, says)
	}
	return found
}

// After the engine has lost its data, a holder must not go on beside another for ever.
func TestFindsRenewalOfWhatWasForgotten(t *testing.T) {
	found := finds(t, Harness{Changes: 1, New: func(w *World) func(*Process) driver.Driver {
		server, flushed, last := memory.NewServer(), false, make(map[driver.Claim]uint64)
		w.OnFlush(func() {
			flushed = true
			server.Flush()
		})
		return func(p *Process) driver.Driver {
			return p.Link("", &brokenDriver{Driver: deaf{server.Connect()}, try: func(c driver.Claim, ctx context.Context) (driver.Grant, error) {
				g, err := c.Try(ctx)
				last[c] = g.Fence
				return g, err
			}, renew: func(c driver.Claim, ctx context.Context, ttl time.Duration) (driver.Grant, error) {
				g, err := c.Renew(ctx, ttl)
				if flushed && errors.Is(err, driver.ErrLost) {
					return driver.Grant{TTL: ttl, Fence: last[c]}, nil
				}
				return g, err
			}})
		}
	}}, "crowd", "both believe")
	t.Log(found.encode("crowd"), found.violation)
}

// A deaf driver does not tell of losses.
type deaf struct{ driver.Driver }

func (d deaf) Claim(req driver.Request) (driver.Claim, error) {
	req.Lost = nil
	return d.Driver.Claim(req)
}

// Random schedules know how many events there are, also where no schedule is tried in order:
// otherwise all of their changes fall on the first events.
func TestRandomChangesReachTheEnd(t *testing.T) {
	h := Harness{Changes: -1, New: func(w *World) func(*Process) driver.Driver {
		server := memory.NewServer()
		return func(p *Process) driver.Driver { return p.Link("", server.Connect()) }
	}}.withDefaults()
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == "three" })
	s := newSearch(t, h, scenarios[i])
	s.inOrder()
	if len(s.plain) == 0 {
		t.Error("the number of events is not known")
	}
}

// A schedule shows nothing if its event does not occur, or its action is not possible there.
func TestReplayTellsOfMissingEvents(t *testing.T) {
	h := Harness{New: func(w *World) func(*Process) driver.Driver {
		server := memory.NewServer()
		return func(p *Process) driver.Driver { return p.Link("", server.Connect()) }
	}}.withDefaults()
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == "two" })
	s := newSearch(t, h, scenarios[i])
	for text, want := range map[string]bool{
		"two; p1 Nonsense 1 = lose": false, "two; p1 Try 1 = nonsense": false, "two; p1 Try 1 = cancel c9": false, "two; p1 Try 1 = lose": true,
	} {
		_, changes, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, all := s.again(changes); all != want {
			t.Errorf("%s: all changes made: %v, want %v", text, all, want)
		}
	}
}
