package serve_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A refusing engine answers, but grants nothing, for a reason.
type refusing struct {
	*memory.Driver
	why        atomic.Pointer[error]
	rehearsals atomic.Int64
}

func (*refusing) Check(context.Context) ([]driver.Finding, error) { return nil, nil }

func (d *refusing) Rehearse(context.Context) error {
	d.rehearsals.Add(1)
	return d.refusal()
}

func (d *refusing) refusal() error {
	if why := d.why.Load(); why != nil {
		return *why
	}
	return nil
}

func (d *refusing) refuses(why error) {
	if why != nil {
		why = fmt.Errorf("the engine is %w, says the test", why)
	}
	d.why.Store(&why)
}

func (d *refusing) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return refusingClaim{c, d}, err
}

type refusingClaim struct {
	driver.Claim
	d *refusing
}

func (c refusingClaim) Try(ctx context.Context) (driver.Grant, error) {
	if err := c.d.refusal(); err != nil {
		return driver.Grant{}, err
	}
	return c.Claim.Try(ctx)
}

// A slowly rehearsing engine ends its first rehearsal, whose outcome it knows, when ends is closed.
type slowlyRehearsing struct {
	*refusing
	began, ends chan struct{}
}

func (d *slowlyRehearsing) Rehearse(ctx context.Context) error {
	err := d.refusing.Rehearse(ctx)
	if d.rehearsals.Load() == 1 {
		close(d.began)
		<-d.ends
	}
	return err
}

// A refusal is answered while a check rehearses. The next check rehearses again, because the one
// before may have been too early.
func TestRefusalDoesNotWaitForARehearsal(t *testing.T) {
	t.Parallel()
	d := &slowlyRehearsing{&refusing{Driver: memory.New()}, make(chan struct{}), make(chan struct{})}
	s := startOn(t, d, nil)
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/readyz", nil))
	}()
	<-d.began
	d.refuses(driver.ErrReadOnly)
	answered := make(chan answer, 1)
	go func() {
		a, _ := post(s.url+wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`)
		answered <- a
	}()
	select {
	case a := <-answered:
		if a.Code != wire.CodeReadOnly {
			t.Errorf("answered %s", a.text)
		}
	case <-time.After(20 * time.Second):
		t.Error("the refusal waits for the rehearsal")
	}
	close(d.ends)
	<-checked
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil)); w.Code != http.StatusServiceUnavailable {
		t.Errorf("ready after the refusal: %d %s", w.Code, w.Body)
	}
}

// If an engine answers but grants nothing, the outcome is a refusal and not unknown. If the engine
// accepts no writes, the instance is not ready. An engine that is full still renews leases.
func TestEngineThatGrantsNothing(t *testing.T) {
	t.Parallel()
	d := &refusing{Driver: memory.NewServer().Connect()}
	s := startOn(t, d, nil)
	ready := func() (int, wire.Answer) {
		resp, err := http.Get(s.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		a, _ := read(resp)
		return a.status, a.Answer
	}
	for range 100 {
		if status, a := ready(); status != 200 || a.Warning != "" {
			t.Fatalf("ready: %d %+v", status, a)
		}
	}
	if n := d.rehearsals.Load(); n != 1 {
		t.Errorf("100 probes had %d locks rehearsed", n)
	}
	const acquire = `{"name":"n","owner":%q,"ttl_ms":60000}`
	for _, one := range []struct {
		why   error
		code  string
		ready int
	}{{driver.ErrReadOnly, "read_only", 503}, {driver.ErrFull, "full", 200}} {
		d.refuses(one.why)
		s.post(wire.Acquire, acquire, "a-"+one.code).want(t, 503, one.code)
		status, a := ready() // the refusal makes the next check ask again
		if status != one.ready || a.Warning+a.Error != "the engine is "+one.why.Error()+", says the test" {
			t.Errorf("ready while it is %v: %d %+v", one.why, status, a)
		}
		d.refuses(nil)
		eventually(t, "it grants again", func() bool { status, a := ready(); return status == 200 && a.Warning == "" })
		s.post(wire.Acquire, acquire, "b-"+one.code).want(t, 200, "")
		s.post(wire.Release, `{"name":"n","owner":%q}`, "b-"+one.code).want(t, 200, "")
	}
}

// A rehearsal without an answer does not say that the engine grants again.
func TestUnansweredRehearsalTellsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &refusing{Driver: memory.New()}
		s := newBubble(t, d, nil)
		for i, c := range []struct {
			why    error
			status int
		}{{driver.ErrReadOnly, 503}, {context.DeadlineExceeded, 503}, {nil, 200}, {context.DeadlineExceeded, 200}} {
			d.refuses(c.why)
			time.Sleep(time.Minute)
			w := httptest.NewRecorder()
			if s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil)); w.Code != c.status {
				t.Errorf("check %d, after %v: %d %s", i, c.why, w.Code, w.Body)
			}
		}
	})
}

// A misrehearsing engine ends rehearsals with an error of their own. nil: they end as grants do.
type misrehearsing struct {
	*refusing
	err error
}

func (d *misrehearsing) Rehearse(ctx context.Context) error {
	return cmp.Or(d.err, d.refusing.Rehearse(ctx))
}

// If rehearsals tell nothing any more, the last refusal stands until the engine grants a lock. If
// they are denied, it does not stand: an instance that is not ready may get no calls.
func TestGrantEndsTheRefusalOfARehearsal(t *testing.T) {
	t.Parallel()
	const claim = `{"name":"n","owner":"o","ttl_ms":600000}`
	none := func(bubble) {}
	grant := func(s bubble) { s.want(200, wire.Acquire, `{"name":"m","owner":"o","ttl_ms":60000}`) }
	renewal := func(s bubble) { s.want(200, wire.Renew, claim) }
	for what, c := range map[string]struct {
		why, rehearsal error
		calls          func(s bubble)
		stands         bool
	}{
		"read-only, and no call": {driver.ErrReadOnly, context.DeadlineExceeded, none, true},
		"read-only, and a grant": {driver.ErrReadOnly, context.DeadlineExceeded, grant, false},
		"read-only, and renewed": {driver.ErrReadOnly, context.DeadlineExceeded, renewal, false},
		"read-only, and denied":  {driver.ErrReadOnly, driver.ErrDenied, none, false},
		"full, and no call":      {driver.ErrFull, context.DeadlineExceeded, none, true},
		"full, and a grant":      {driver.ErrFull, context.DeadlineExceeded, grant, false},
		"full, and renewed":      {driver.ErrFull, context.DeadlineExceeded, renewal, true}, // which needs no space
		"full, and denied":       {driver.ErrFull, driver.ErrDenied, none, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &misrehearsing{refusing: &refusing{Driver: memory.New()}}
				s := newBubble(t, d, nil)
				refused := func() bool {
					w := httptest.NewRecorder()
					s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
					return strings.Contains(w.Body.String(), c.why.Error())
				}
				s.want(200, wire.Acquire, claim)
				d.refuses(c.why)
				if !refused() {
					t.Error("ready")
				}
				d.refuses(nil)
				d.err = c.rehearsal
				for range 3 { // rehearsals between the refusal and the call
					time.Sleep(time.Minute)
					refused()
				}
				time.Sleep(time.Second)
				c.calls(s)
				time.Sleep(time.Minute)
				if got := refused(); got != c.stands {
					t.Errorf("refused: %t, want %t", got, c.stands)
				}
			})
		})
	}
}
