package serve_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// A standing driver makes renewals when the test lets it.
type standing struct {
	driver.Driver
	renewing chan struct{} // gets an element for each renewal that has come
	goes     chan struct{} // lets one renewal go for each element
}

func (d standing) Claim(req driver.Request) (driver.Claim, error) {
	c, err := d.Driver.Claim(req)
	return standingClaim{c, d}, err
}

type standingClaim struct {
	driver.Claim
	d standing
}

func (c standingClaim) Renew(ctx context.Context, ttl time.Duration) (driver.Grant, error) {
	c.d.renewing <- struct{}{}
	<-c.d.goes
	return c.Claim.Renew(ctx, ttl)
}

// Calls that wait for an earlier call of their owner are served in the order of their numbers, or
// not at all.
func TestLateCallsAreRefusedInTheirTurn(t *testing.T) {
	t.Parallel()
	d := standing{memory.NewServer().Connect(), make(chan struct{}, 3), make(chan struct{})}
	s := startOn(t, d, nil)
	renew := func(call int) chan answer {
		done := make(chan answer, 1)
		go func() {
			done <- s.post(wire.Renew, `{"name":"n","owner":"o","ttl_ms":%d,"caller":"c","call":%d}`, 10000*call, call)
		}()
		return done
	}
	s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"caller":"c","call":1}`).want(t, 200, "")
	second := renew(2)
	<-d.renewing
	third := renew(3)
	time.Sleep(100 * time.Millisecond) // by then it very likely waits
	fourth := renew(4)
	time.Sleep(100 * time.Millisecond)
	close(d.goes)
	(<-second).want(t, 200, "")
	(<-fourth).want(t, 200, "")
	if a := <-third; a.status != 410 || a.Code != "late_call" {
		t.Errorf("a call that had to wait until a later one had come: %d %s", a.status, a.text)
	}
}

// A call ends the wait of an earlier one of its owner even if that one does not wait for holders
// yet: it may look for its lease, or wait for its turn. Otherwise the later call would have no
// answer.
func TestCallEndsAWaitThatHasNotBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := memory.NewServer()
		d := standing{engine.Connect(), make(chan struct{}, 1), make(chan struct{})}
		s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
		other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
		start, answers := time.Now(), make(chan string, 3)
		call := func(path, body string) {
			go func() {
				status := s.post(path, "%s", body)
				answers <- fmt.Sprint(path, " ", status, " after ", time.Since(start))
			}()
			synctest.Wait()
		}
		call(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000}`) // looks for its lease
		call(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000}`) // waits for its turn
		call(wire.Release, `{"name":"n","owner":"o"}`)
		close(d.goes)
		got := []string{<-answers, <-answers, <-answers}
		slices.Sort(got)
		if want := []string{"/v1/acquire 409 after 0s", "/v1/acquire 409 after 0s", "/v1/release 200 after 0s"}; !slices.Equal(got, want) {
			t.Errorf("answered %q, want %q", got, want)
		}
	})
}
