package httplock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// Whoever was evicted is told so, and why: by the events, and by a renewal where there are none.
func TestEvictionIsToldAsSuch(t *testing.T) {
	t.Parallel()
	url := instances(t, memory.NewServer(), 1, nil)
	for _, noEvents := range []bool{false, true} {
		d, err := httplock.Connect(t.Context(), url, &httplock.Options{NoEvents: noEvents})
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		req := driver.Request{Resource: "n", Owner: "an-owner-of-this-test", TTL: time.Minute, Lost: func(err error) { told <- err }}
		c, err := d.Claim(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.(driver.Operator).Evict(t.Context(), "n", req.Owner, "maintenance"); err != nil {
			t.Fatal(err)
		}
		want := driver.Evicted("maintenance").Error()
		if !noEvents {
			select {
			case err := <-told:
				if !errors.Is(err, driver.ErrLost) || !errors.Is(err, driver.ErrEvicted) || err.Error() != want {
					t.Errorf("told %v, want %s", err, want)
				}
			case <-time.After(20 * time.Second):
				t.Error("not told")
			}
		}
		_, err = c.Renew(t.Context(), time.Minute)
		if !errors.Is(err, driver.ErrLost) || noEvents && !errors.Is(err, driver.ErrEvicted) {
			t.Errorf("renewed after it, events %v: %v", !noEvents, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A service may report the end of a live lease, because a replica's answer was old. The driver then renews the lease to
// find out, and releases nothing. If the lease lives, its holder hears nothing, until the service reports its end again
// without a call of the holder in between. If it has ended, the holder learns why; only a call of its own claim tells.
func TestAnEndIsCheckedBeforeItIsTold(t *testing.T) {
	t.Parallel()
	for _, is := range []string{"lives", "evicted", "lives, but the service says so again"} {
		evicted, again := is == "evicted", strings.HasSuffix(is, "again")
		engine := memory.NewServer()
		forward := forwarder(t, instances(t, engine, 1, nil))
		ends, calls := make(chan wire.Event), make(chan string, 8)
		d := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != wire.Events {
				calls <- r.URL.Path
				forward.ServeHTTP(w, r)
				return
			}
			for kind, e := wire.EventOpen, (wire.Event{}); ; kind = wire.EventEnded {
				data, _ := json.Marshal(e)
				fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
				w.(http.Flusher).Flush()
				select {
				case e = <-ends:
				case <-r.Context().Done():
					return
				}
			}
		}))
		direct := engine.Connect()
		t.Cleanup(func() { direct.Close() })
		told := make(chan error, 1)
		req := driver.Request{Resource: "n", Owner: "an-owner-of-this-test", TTL: time.Minute, Lost: func(err error) { told <- err }}
		c, err := d.Claim(req)
		if err != nil {
			t.Fatal(err)
		}
		g, err := c.Try(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if evicted {
			if err := direct.Evict(t.Context(), "n", req.Owner, "maintenance"); err != nil {
				t.Fatal(err)
			}
		}
		for len(calls) > 0 {
			<-calls
		}
		e := wire.Event{Name: "n", Handle: httplock.Shown(req.Owner), Token: strconv.FormatUint(g.Fence, 10)}
		ends <- e
		if call := <-calls; call != wire.Renew {
			t.Errorf("%s: asked by %s", is, call)
		}
		var lost error
		if again {
			ends <- e
			select {
			case lost = <-told:
			case <-time.After(20 * time.Second):
				t.Fatal("not told")
			}
		} else if _, err := c.Renew(t.Context(), time.Minute); (err != nil) != evicted { // once the answer to the question is there
			t.Errorf("%s: renewed: %v", is, err)
		}
		d.Close()
		close(told)
		if err, more := <-told; more {
			lost = errors.Join(lost, err)
		}
		if evicted != errors.Is(lost, driver.ErrEvicted) || (evicted || again) != errors.Is(lost, driver.ErrLost) {
			t.Errorf("%s: told %v", is, lost)
		}
		if len(calls) > 0 && again {
			t.Errorf("%s: then called %s", is, <-calls)
		}
		if state, err := direct.Inspect(t.Context(), "n"); err != nil || len(state.Holders) == 1 == evicted {
			t.Errorf("%s: %+v, %v", is, state, err)
		}
	}
}
