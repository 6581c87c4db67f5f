package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
)

// endless lists nothing in time, or refuses at once.
type endless struct {
	*memory.Driver
	lists   atomic.Int64
	busy    atomic.Int64 // as a time.Duration
	refuses bool
}

func (d *endless) List(ctx context.Context, _, _ string, _ int) ([]driver.State, string, error) {
	d.lists.Add(1)
	if d.refuses {
		return nil, "", errors.New("no connection")
	}
	began := time.Now()
	<-ctx.Done()
	d.busy.Add(int64(time.Since(began)))
	return nil, "", ctx.Err()
}

// mute answers nothing.
type mute struct{ endless }

func (d *mute) Inspect(ctx context.Context, _ string) (driver.State, error) {
	<-ctx.Done()
	return driver.State{}, ctx.Err()
}

// A scrape that comes while another one asks a store that does not answer says so too.
func TestTwoScrapesOfAStoreThatIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newBubble(t, &mute{endless{Driver: memory.New()}}, nil)
		down := func() {
			if m := s.get("/metrics"); !bytes.Contains(m, []byte("leasehold_store_up 0\n")) {
				t.Errorf("the metrics do not say that the store is down:\n%s", m)
			}
		}
		var first sync.WaitGroup
		first.Go(down)
		synctest.Wait()
		down()
		first.Wait()
	})
}

// A store that takes too long to list everything is asked ever less often, and does not count as
// down, because its other calls are served. A store that refuses is asked as often as before.
func TestStoreThatIsTooSlowToList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &endless{Driver: memory.New()}
		s := newBubble(t, d, nil)
		s.want(200, wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000}`)
		const all = time.Hour
		time.Sleep(all)
		if d.lists.Load() < 10 || time.Duration(d.busy.Load()) > all/10 {
			t.Errorf("%d lists took %v of %v", d.lists.Load(), time.Duration(d.busy.Load()), all)
		}
		if f := s.figures(); f.Store != wire.StoreUnknown {
			t.Errorf("the store is %s", f.Store)
		}
		for busy := d.busy.Load(); d.busy.Load() == busy; {
			time.Sleep(time.Second)
		}
		if m := s.get("/metrics"); !bytes.Contains(m, []byte("leasehold_store_up 1\n")) {
			t.Errorf("the metrics do not say that the store is up:\n%s", m)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := &endless{Driver: memory.New(), refuses: true}
		s := newBubble(t, d, nil)
		time.Sleep(time.Minute)
		if f := s.figures(); f.Store != wire.StoreDown || d.lists.Load() < 10 {
			t.Errorf("the store is %s after %d lists", f.Store, d.lists.Load())
		}
	})
}

// slowly lists in a second.
type slowly struct{ *memory.Driver }

func (d slowly) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	time.Sleep(time.Second)
	return d.Driver.List(ctx, prefix, after, limit)
}

// Figures tell the pause between looks, which is longer if a look takes long.
func TestFiguresTellThePauseBetweenLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, quick := newBubble(t, slowly{memory.New()}, nil), newBubble(t, memory.New(), nil)
		if f := s.figures(); f.Age != nil || f.Pause != nil {
			t.Errorf("before a look: age %v, pause %v", f.Age, f.Pause)
		}
		time.Sleep(1500 * time.Millisecond)
		for range 60 {
			if f := s.figures(); f.Pause == nil || *f.Pause != 20_000 || *f.Age > *f.Pause+1500 {
				t.Fatalf("age %v, pause %v", f.Age, f.Pause)
			}
			time.Sleep(time.Second)
		}
		if f := quick.figures(); f.Pause == nil || *f.Pause != 5000 {
			t.Errorf("of a store that answers at once: %v", f.Pause)
		}
	})
}

// A caller that has closed its half of the connection still reads its answer.
func TestCallerThatOnlyReadsIsAnswered(t *testing.T) {
	t.Parallel()
	for owner, want := range map[string]int{"o": 200, "": 409} {
		t.Run("owner "+owner, func(t *testing.T) {
			t.Parallel()
			engine := memory.NewServer()
			d := stopped{engine.Connect(), make(chan struct{}), make(chan struct{})}
			s, another := startOn(t, d, nil), start(t, engine, nil)
			gone := make(chan struct{})
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				context.AfterFunc(r.Context(), func() { close(gone) })
				s.ServeHTTP(w, r)
			}))
			defer web.Close()
			c, err := net.Dial("tcp", web.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			body := fmt.Sprintf(`{"name":"n","owner":%q,"ttl_ms":60000}`, owner)
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", wire.Acquire, web.Listener.Addr(), len(body), body)
			<-d.came
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			<-gone // the service believes so
			d.goes <- struct{}{}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if a, _ := read(resp); a.status != want || a.Outcome == "" {
				t.Errorf("answered %d %q", a.status, a.text)
			}
			if held := len(another.state("n").Holders); (held > 0) != (want == 200) {
				t.Errorf("%d hold", held)
			}
		})
	}
}
