package memcachelock

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/record"
)

// The table of the package's documentation: each answer in each phase.
func TestPhases(t *testing.T) {
	t.Parallel()
	phases := []phase{idle, refused, held, over}
	for _, from := range phases {
		for what, answer := range map[string]struct {
			err       error
			yes, want phase
		}{
			"granted":  {nil, held, held},
			"renewed":  {nil, held, held},
			"released": {nil, over, over},
			"refused":  {&driver.Busy{}, held, refused},
			"lost":     {driver.ErrLost, held, over},
			"unknown":  {context.DeadlineExceeded, held, from},
		} {
			c := claim{phase: from}
			if c.answered(answer.err, answer.yes); c.phase != answer.want {
				t.Errorf("%s in phase %d: phase %d, want %d", what, from, c.phase, answer.want)
			}
		}
	}
}

// Where there is nothing to give up, nothing is asked; with an add adrift it is, in every phase.
func TestReleaseAsksWhereSomethingMayBe(t *testing.T) {
	t.Parallel()
	d, err := New([]string{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Close() // whoever asks is told that
	for _, from := range []phase{idle, refused, held, over} {
		for adrift := range 2 {
			made, err := d.Claim(driver.Request{Resource: "r", Owner: "me", TTL: minTTL})
			if err != nil {
				t.Fatal(err)
			}
			c := made.(*claim)
			c.phase, c.adrift = from, adrift
			err = c.Release(t.Context(), driver.End{})
			asks := from == idle || from == held || adrift > 0
			if asks != errors.Is(err, driver.ErrClosed) || !asks && !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release in phase %d with %d adds adrift: %v", from, adrift, err)
			}
		}
	}
}

// An add that is adrift is seen to have arrived once; what others store is somebody's lease.
func TestReadOfRecords(t *testing.T) {
	t.Parallel()
	r := record.Record{}
	r.Try(lasting{}, &driver.Request{Owner: "me", TTL: minTTL}, 0, 0)
	mine := item{value: r.Encode(), version: 7}
	c := claim{req: driver.Request{Owner: "me"}, adrift: 2}
	for range 2 {
		if r := c.read(mine); !r.Holds("me") || c.adrift != 1 || c.phase != held {
			t.Errorf("%d adrift, phase %d, %+v", c.adrift, c.phase, r)
		}
	}
	if r := c.read(item{}); len(r.Claims) > 0 {
		t.Errorf("nothing reads as %+v", r)
	}
	for _, value := range []string{"", "token", "me", `{"v":9}`, "\x00"} {
		r := c.read(item{value: []byte(value), version: 1})
		if a, _ := r.Try(lasting{}, &driver.Request{Owner: "me"}, 0, 0); a.Granted || a.Holder.Owner != value {
			t.Errorf("beside %q: %+v", value, a)
		}
	}
}

// A Try that reached no server leaves nothing: its release does not wait for the server.
func TestUnreachedTryLeavesNothing(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	d, err := New([]string{"a"}, &Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, refused }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := d.Claim(driver.Request{Resource: "r", Owner: "me", TTL: minTTL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Try(t.Context()); !errors.Is(err, refused) {
		t.Errorf("Try: %v", err)
	}
	if err := c.Release(t.Context(), driver.End{}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v; want ErrLost", err)
	}
}
