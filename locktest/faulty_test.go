package locktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
)

func claimOn(t *testing.T, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	req.Resource, req.TTL = "r", time.Minute
	return claimtest.New(t, d, req)
}

func TestFaultsHappenInOrder(t *testing.T) {
	t.Parallel()
	link := locktest.NewFaulty(memory.New())
	defer link.Close()
	c := claimOn(t, link, driver.Request{Owner: "a"})
	link.Next(locktest.OpTry, locktest.LoseRequest, nil, locktest.LoseReply)
	link.Always(locktest.OpTry, locktest.HangReply)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for i, want := range []error{locktest.ErrInjected, nil, locktest.ErrInjected, context.DeadlineExceeded} {
		g, err := c.Try(short)
		if !errors.Is(err, want) || (err == nil) != (g.TTL > 0) {
			t.Errorf("Try %d: %+v, %v; want %v", i, g, err, want)
		}
	}
	if n := link.Calls(locktest.OpTry); n != 4 {
		t.Errorf("%d calls counted, want 4", n)
	}
}

func TestLostRequestIsNotServed(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	link := locktest.NewFaulty(server.Connect())
	defer link.Close()
	c, other := claimOn(t, link, driver.Request{Owner: "a"}), claimOn(t, server.Connect(), driver.Request{Owner: "b"})
	link.Next(locktest.OpTry, locktest.LoseRequest, locktest.LoseReply)
	_, _ = c.Try(t.Context()) // fails on purpose
	if _, err := other.Try(t.Context()); err != nil {
		t.Errorf("after a request that was lost: %v; want a grant", err)
	}
	if err := other.Release(t.Context(), driver.End{}); err != nil {
		t.Error(err)
	}
	_, _ = c.Try(t.Context()) // fails on purpose
	if _, err := other.Try(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("after a reply that was lost: %v; want busy", err)
	}
}

// TestSeveredLinkHoldsBack: neither Wake nor Lost passes a cut link; both do when it heals.
func TestSeveredLinkHoldsBack(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	near := server.Connect()
	link := locktest.NewFaulty(server.Connect())
	defer link.Close()
	holder := claimOn(t, near, driver.Request{Owner: "holder"})
	claimtest.Granted(t, holder)
	lost := make(chan error, 2)
	waiter := claimOn(t, link, driver.Request{Owner: "waiter", Queue: true, Lost: func(cause error) { lost <- cause }})
	_, err := waiter.Try(t.Context())
	busy, ok := errors.AsType[*driver.Busy](err)
	if !ok || busy.Wake == nil {
		t.Fatalf("Try: %v; want busy with a Wake", err)
	}
	heal := link.Sever()
	claimtest.Released(t, holder)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := waiter.Try(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Try over a cut link: %v; want it to hang", err)
	}
	heal()
	heal() // does nothing
	if _, err := waiter.Try(t.Context()); err != nil {
		t.Fatalf("Try over a healed link: %v", err)
	}
	heal = link.Sever()
	if err := near.Evict(t.Context(), "r", "waiter", "test"); err != nil {
		t.Fatal(err)
	}
	select {
	case cause := <-lost:
		t.Errorf("Lost passed a cut link: %v", cause)
	case <-time.After(50 * time.Millisecond):
	}
	heal()
	select {
	case cause := <-lost:
		if !errors.Is(cause, driver.ErrLost) {
			t.Errorf("cause %v", cause)
		}
	case <-time.After(locktest.Margin):
		t.Error("Lost did not arrive after heal")
	}
}

// A pushing driver refuses each Try with the same Busy, and hands out the Request.
type pushing struct {
	*memory.Driver
	busy *driver.Busy
	req  driver.Request
}

func (p *pushing) Claim(req driver.Request) (driver.Claim, error) {
	p.req = req
	c, err := p.Driver.Claim(req)
	return pushed{c, p.busy}, err
}

type pushed struct {
	driver.Claim
	busy *driver.Busy
}

func (p pushed) Try(context.Context) (driver.Grant, error) { return driver.Grant{}, p.busy }

// TestSeveredLinkHoldsBackGrants: neither a grant that needs no other Try nor Wanted passes a cut
// link; both do when it heals. A grant does not pass where Wakes are lost.
func TestSeveredLinkHoldsBackGrants(t *testing.T) {
	for _, loses := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			wake, granted := make(chan struct{}), make(chan driver.Grant, 1)
			engine := &pushing{Driver: memory.New(), busy: &driver.Busy{Wake: wake, Granted: granted}}
			link := locktest.NewFaulty(engine)
			defer link.Close()
			wanted := 0
			if loses {
				link.LoseWakes()
			}
			_, err := claimOn(t, link, driver.Request{Owner: "waiter", Wanted: func() { wanted++ }}).Try(t.Context())
			busy, ok := errors.AsType[*driver.Busy](err)
			if !ok {
				t.Fatalf("Try: %v; want busy", err)
			}
			arrived := func() (n int) {
				synctest.Wait()
				select {
				case <-busy.Granted:
					n++
				default:
				}
				return n + wanted
			}
			heal := link.Sever()
			granted <- driver.Grant{TTL: time.Minute}
			close(wake)
			engine.req.Wanted()
			if n := arrived(); n > 0 {
				t.Errorf("%d of a grant and a notice passed a cut link", n)
			}
			heal()
			want := 2
			if loses {
				want = 1
			}
			if n := arrived(); n != want {
				t.Errorf("%d of a grant and a notice have arrived after heal, want %d", n, want)
			}
		})
	}
}

// A link that was severed twice works when both are healed, in any order. A later heal does nothing.
func TestALinkSeveredTwice(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			link := locktest.NewFaulty(memory.New())
			defer link.Close()
			c := claimOn(t, link, driver.Request{Owner: "a"})
			works := func(want bool) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := c.Try(ctx); (err == nil) != want {
					t.Errorf("%v; want that it works: %v", err, want)
				}
			}
			heals := []func(){link.Sever(), link.Sever()}
			works(false)
			heals[order[0]]()
			works(false)
			heals[order[0]]()
			works(false)
			heals[order[1]]()
			works(true)
			heal := link.Sever()
			heals[order[1]]()
			works(false)
			heal()
			works(true)
		})
	}
}
