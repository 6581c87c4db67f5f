package serve_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// An owner that has not heard of its grant releases it, at whatever instance. Nobody has worked
// under the lease, so at_least_ms keeps nobody from the name.
func TestUnusedGrantKeepsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		s, another := newBubble(t, engine.Connect(), nil), newBubble(t, engine.Connect(), nil)
		const least = `{"name":"n","owner":%q,"ttl_ms":60000,"at_least_ms":60000}`
		s.want(200, wire.Acquire, least, "a")
		s.want(200, wire.Release, `{"name":"n","owner":"a","at_least_ms":60000,"unused":true}`)
		s.want(200, wire.Acquire, least, "b")
		another.want(200, wire.Release, `{"name":"n","owner":"b","at_least_ms":60000,"unused":true}`)
		s.want(200, wire.Acquire, least, "c")
		s.want(200, wire.Release, `{"name":"n","owner":"c","at_least_ms":60000}`)
		s.want(409, wire.Acquire, least, "d")
	})
}

// A caller refused because a finished job keeps the name is not told that somebody holds it.
func TestRefusalSaysThatAJobHasFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, memory.New(), nil)
		refused := func(because string) {
			t.Helper()
			if text := s.serve(wire.Acquire, `{"name":"n","owner":"other","ttl_ms":60000}`).Body.String(); !strings.Contains(text, because) {
				t.Errorf("answered %s, want %q", text, because)
			}
		}
		s.want(200, wire.Acquire, `{"name":"n","owner":"job","ttl_ms":60000,"at_least_ms":60000}`)
		refused("somebody else holds it")
		s.want(200, wire.Release, `{"name":"n","owner":"job","at_least_ms":60000}`)
		refused("a finished job keeps it for now")
	})
}

// saysHeld tells for all leases that they are held for so long. 0: it does not tell.
type saysHeld struct {
	*memory.Driver
	held time.Duration
}

func (d saysHeld) Inspect(ctx context.Context, name string) (driver.State, error) {
	state, err := d.Driver.Inspect(ctx, name)
	for i := range state.Holders {
		state.Holders[i].Held = d.held
	}
	return state, err
}

// The instance that grants a lease counts at_least_ms from the grant, whatever the engine says.
func TestAtLeastCountsFromTheGrant(t *testing.T) {
	t.Parallel()
	const (
		job     = `{"name":"n","owner":"job","ttl_ms":300000,"at_least_ms":60000,"caller":"c","call":1}`
		release = `{"name":"n","owner":"job","at_least_ms":60000,"caller":"c","call":2}`
		other   = `{"name":"n","owner":"other","ttl_ms":60000}`
	)
	for held, c := range map[time.Duration]struct {
		works  time.Duration
		status int
	}{
		0:         {2 * time.Minute, 200},
		time.Hour: {time.Second, 409}, // by a wrong wall clock
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newBubble(t, saysHeld{memory.New(), held}, nil)
			s.want(200, wire.Acquire, job)
			time.Sleep(c.works)
			s.want(200, wire.Release, release)
			s.want(c.status, wire.Acquire, other)
		})
	}
}

// at_least_ms counts from the grant of the lease that is released, not from an earlier one of the
// same owner.
func TestAtLeastOfALeaseThatAnotherInstanceGranted(t *testing.T) {
	t.Parallel()
	const (
		acquire = `{"name":"n","owner":"job","ttl_ms":300000%s}`
		release = `{"name":"n","owner":"job"%s}`
		other   = `{"name":"n","owner":"other","ttl_ms":60000}`
		least   = `,"at_least_ms":60000`
	)
	call := func(n int) string { return fmt.Sprintf(`,"caller":"c","call":%d,"answered":%d`, n, n-1) }
	for what, c := range map[string]struct {
		then   func(here, there bubble)
		status int
	}{
		"a renewal finds the later one": {func(here, there bubble) {
			here.want(200, wire.Acquire, acquire, least+call(1)) // later calls have no numbers
			time.Sleep(2 * time.Minute)
			there.want(200, wire.Evict, `{"name":"n","owner":"job"}`)
			there.want(200, wire.Acquire, acquire, "")
			here.want(200, wire.Renew, acquire, "")
			here.want(200, wire.Release, release, least)
		}, 409},
		"its release follows skipped calls": {func(here, there bubble) {
			here.want(200, wire.Acquire, acquire, least+call(1))
			there.want(200, wire.Release, release, call(2))
			there.want(200, wire.Acquire, acquire, call(3))
			here.want(200, wire.Release, release, call(4))
		}, 200},
		"it is the known one, after skipped calls": {func(here, there bubble) {
			here.want(200, wire.Acquire, acquire, least+call(1))
			there.want(200, wire.Renew, acquire, call(2))
			here.want(200, wire.Release, release, call(3))
		}, 409},
		"it is the known one, held for longer": {func(here, there bubble) {
			here.want(200, wire.Acquire, acquire, least+call(1))
			time.Sleep(2 * time.Minute)
			there.want(200, wire.Renew, acquire, call(2))
			here.want(200, wire.Release, release, least+call(3))
		}, 200},
	} {
		for about, connect := range map[string]func(*memory.Server) driver.Driver{
			"the engine tells since when it is held": func(e *memory.Server) driver.Driver { return e.Connect() },
			"it does not":                            func(e *memory.Server) driver.Driver { return saysHeld{e.Connect(), 0} },
		} {
			t.Run(what+", "+about, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					engine := memory.NewServer()
					c.then(newBubble(t, connect(engine), nil), newBubble(t, connect(engine), nil))
					newBubble(t, engine.Connect(), nil).want(c.status, wire.Acquire, other)
				})
			})
		}
	}
}
