package serve_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A stopped driver makes attempts when the test lets it.
type stopped struct {
	driver.Driver
	came chan struct{} // gets an element for each attempt that has come
	goes chan struct{} // lets one attempt go for each element
}

func (d stopped) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return stoppedClaim{c, d}, err
}

type stoppedClaim struct {
	driver.Claim
	d stopped
}

func (c stoppedClaim) Try(ctx context.Context) (driver.Grant, error) {
	c.d.came <- struct{}{}
	<-c.d.goes
	return c.Claim.Try(ctx)
}

// If one instance serves an acquire after another has answered the release of the same caller, the
// acquire gets nothing.
func TestAcquireAfterTheReleaseElsewhereTakesNothing(t *testing.T) {
	t.Parallel()
	const acquire, release = `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c",%s}`, `{"name":"n","owner":"o","caller":"c",%s}`
	for name, calls := range map[string]struct{ again, release string }{
		"and it was granted elsewhere":        {`"call":2`, `"call":3`},
		"and it was never granted":            {"", `"call":2`},
		"and its caller counts what it heard": {`"call":2`, `"call":3,"answered":0`},
		"by another process":                  {`"call":2`, `"call":2,"caller":"d"`},
		"and the release is another's first":  {`"call":2`, `"call":1,"caller":"d"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := memory.NewServer()
			d := stopped{engine.Connect(), make(chan struct{}), make(chan struct{})}
			a, b := startOn(t, d, nil), start(t, engine, nil)
			late := make(chan answer, 1)
			go func() { late <- a.post(wire.Acquire, acquire, `"call":1`) }()
			defer close(d.goes)
			<-d.came
			want, code := 410, "lost"
			if calls.again != "" {
				b.post(wire.Acquire, acquire, calls.again).want(t, 200, "")
				want, code = 200, ""
			}
			text := release
			if strings.Contains(calls.release, "caller") {
				text = `{"name":"n","owner":"o",%s}`
			}
			b.post(wire.Release, text, calls.release).want(t, want, code)
			d.goes <- struct{}{}
			(<-late).want(t, 410, "owner_used")
			b.post(wire.Acquire, `{"name":"n","owner":"next","ttl_ms":60000}`).want(t, 200, "")
		})
	}
}

// A tardy driver makes releases when the test lets it.
type tardy stopped

func (d tardy) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return tardyClaim{c, d}, err
}

type tardyClaim struct {
	driver.Claim
	d tardy
}

func (c tardyClaim) Release(ctx context.Context, how driver.End) error {
	c.d.came <- struct{}{}
	<-c.d.goes
	return c.Claim.Release(ctx, how)
}

// While a release of an owner may be served late, at another instance, the owner gets no lease that
// the release would end.
func TestReleaseAfterTheReleaseElsewhereEndsNoLaterLease(t *testing.T) {
	t.Parallel()
	const acquire, release = `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":%d%s}`, `{"name":"n","owner":"o","caller":"c","call":%d%s}`
	for counted, answered := range map[string]string{"the caller counts answers": `,"answered":1`, "it does not": ""} {
		for bars, connect := range map[string]func(*memory.Server) driver.Driver{
			"the engine bars owners": func(e *memory.Server) driver.Driver { return e.Connect() },
			"it bars none":           func(e *memory.Server) driver.Driver { return barless{e.Connect()} },
		} {
			t.Run(counted+", "+bars, func(t *testing.T) {
				t.Parallel()
				engine := memory.NewServer()
				d := tardy{connect(engine), make(chan struct{}), make(chan struct{})}
				a, b := startOn(t, d, nil), startOn(t, connect(engine), nil)
				a.post(wire.Acquire, acquire, 1, "").want(t, 200, "")
				late := make(chan answer, 1)
				go func() { late <- a.post(wire.Release, release, 2, answered) }()
				defer close(d.goes)
				<-d.came
				b.post(wire.Release, release, 3, answered).want(t, 200, "")
				b.post(wire.Acquire, acquire, 4, answered).want(t, 410, "owner_used")
				d.goes <- struct{}{}
				(<-late).want(t, 410, "lost")
			})
		}
	}
}

// A caller whose calls were all answered may use its owner again, at any instance.
func TestOwnerWhoseAcquiresWereAnsweredIsUsedAgain(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	a, b := start(t, engine, nil), start(t, engine, nil)
	const acquire, release = `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":%d,"answered":%d}`, `{"name":"n","owner":"o","caller":"c","call":%d,"answered":%d}`
	a.post(wire.Acquire, acquire, 1, 0).want(t, 200, "")
	b.post(wire.Release, release, 2, 1).want(t, 200, "")
	a.post(wire.Acquire, acquire, 3, 2).want(t, 200, "")
	b.post(wire.Release, release, 4, 2).want(t, 200, "") // the last one was not answered
	for _, s := range []*service{a, b} {
		s.post(wire.Acquire, acquire, 5, 4).want(t, 410, "owner_used")
	}
	b.post(wire.Acquire, acquire, 6, 6).want(t, 400, "invalid")
}

// If an instance has served all acquires of a caller, which does not say which were answered, it
// never bars the owner.
func TestOwnerWhoseAcquiresAllCameHereIsUsedAgain(t *testing.T) {
	t.Parallel()
	a := start(t, memory.NewServer(), nil)
	for call := 1; call < 8; call += 2 {
		a.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":%d}`, call).want(t, 200, "")
		a.post(wire.Release, `{"name":"n","owner":"o","caller":"c","call":%d}`, call+1).want(t, 200, "")
	}
}

// A slow driver takes two seconds for an attempt.
type slow struct{ *memory.Driver }

func (d slow) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return slowClaim{c}, err
}

type slowClaim struct{ driver.Claim }

func (c slowClaim) Try(ctx context.Context) (driver.Grant, error) {
	time.Sleep(2 * time.Second)
	return c.Claim.Try(ctx)
}

// A release waits for an acquire of its owner even if its caller does not: nobody would use the grant.
func TestReleaseIsServedAfterItsCallerIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, slow{memory.New()}, nil)
		cancelled, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		calls.Go(func() {
			s.serveFor(cancelled, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":1}`)
		})
		synctest.Wait()
		cancel()
		impatient, cut := context.WithTimeout(t.Context(), time.Second)
		defer cut()
		calls.Go(func() { s.serveFor(impatient, wire.Release, `{"name":"n","owner":"o","caller":"c","call":2}`) })
		calls.Wait()
		if held := told[wire.State](s, wire.Show+"?name=n").Holders; len(held) > 0 {
			t.Errorf("held: %+v", held)
		}
	})
}

// A barless driver cannot bar an owner.
type barless struct{ driver.Driver }

func (d barless) Features() driver.Features {
	f := d.Driver.Features()
	f.Bars = false
	return f
}

// An instance remembers a release that comes before the acquire that it follows.
func TestAcquireAfterItsReleaseTakesNothing(t *testing.T) {
	t.Parallel()
	s := startOn(t, barless{memory.New()}, nil)
	s.post(wire.Release, `{"name":"n","owner":"o","caller":"c","call":2}`).want(t, 410, "lost")
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":1}`).want(t, 410, "late_call")
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":3}`).want(t, 410, "owner_used") // call 1 may be at other instances too
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":3,"answered":2}`).want(t, 200, "")
}
