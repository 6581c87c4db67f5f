package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/life"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A granting service grants each acquire. Its events are what its function answers.
type granting func(r *http.Request) (*http.Response, error)

func (events granting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == wire.Events {
		return events(r)
	}
	var call wire.AcquireCall
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		return nil, err
	}
	g := wire.Grant{Name: call.Name, Owner: call.Owner, Token: "1024", TTL: call.TTL}
	g.Outcome = wire.Granted
	text, err := json.Marshal(g)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(text))}, err
}

// The first Try waits for the stream of events, but leaves most of its caller's time to the acquire.
func TestFirstTryWaitsBrieflyForTheStream(t *testing.T) {
	t.Parallel()
	hangs := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	refused := func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusTooManyRequests, Body: http.NoBody}, nil
	}
	for what, c := range map[string]struct {
		events granting
		within time.Duration // what the caller gives
		waits  time.Duration
	}{
		"it hangs, and the caller has time": {hangs, time.Minute, openWithin},
		"it hangs, and the caller has none": {hangs, openWithin * 4 / 5, openWithin / 5},
		"it is refused":                     {refused, time.Minute, 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &service{base: "http://service", life: life.New(), abilities: wire.Abilities{Inspects: true}, features: driver.Features{Step: time.Millisecond}}
				d.watch.init()
				d.client.Store(&http.Client{Transport: c.events})
				defer d.Close()
				claim, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute, Lost: func(error) {}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				start := time.Now()
				if _, err := claim.Try(ctx); err != nil || time.Since(start) != c.waits {
					t.Errorf("Try: %v after %v, want a grant after %v", err, time.Since(start), c.waits)
				}
			})
		})
	}
}

// A waiter that was stopped before its call sends none.
func TestStoppedWaiterSendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		d := &service{base: "http://service", life: life.New(), features: driver.Features{Step: time.Millisecond}}
		d.watch.init()
		d.client.Store(&http.Client{Transport: counted(func(*http.Request) { sent++ })})
		defer d.Close()
		c, err := d.Claim(driver.Request{Resource: "n", Owner: "o", TTL: time.Minute, Queue: true})
		if err != nil {
			t.Fatal(err)
		}
		stopped, stop := context.WithCancel(t.Context())
		stop()
		w := &wait{claim: c.(*claim), caller: t.Context()}
		if _, err := w.call(stopped, time.Now()); err == nil || sent > 0 {
			t.Errorf("%d calls, %v; want none", sent, err)
		}
	})
}

// counted is a service that hangs until the caller gives up, and counts the calls.
type counted func(*http.Request)

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c(r)
	<-r.Context().Done()
	return nil, r.Context().Err()
}
