package explore_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/record"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestCaslockPlaces explores caslock on a store that keeps a place for each waiter, numbers what it writes and tells of it.
func TestCaslockPlaces(t *testing.T) {
	explore.Run(t, explore.Harness{Name: "caslock, places", For: time.Second, Settle: 80 * time.Second, Scenarios: unlessLong("three", "try", "recall"), Known: []string{
		// A watch that has missed something, and does not begin anew; one that ends while a call to the store hangs.
		"three; p2 hears of a change 1 = lose; p2 watch 2 = hang",
		"pairs; p2 write 4 = die; p1 hears of a change 4 = lose",
		"readers; p1 hears of a change 2 = lose; p1 watch 2 answer = cancel c1; p1 read place 1 answer = hang",
		// Those whose process died are passed, and what they leave hides nobody.
		"left; p2 write 1 = die after",
	}, New: func(w *explore.World) func(*explore.Process) driver.Driver {
		shared := &queue{values: make(map[string]*queued), since: make(map[uint64]time.Time)}
		w.OnState(shared.state)
		return func(p *explore.Process) driver.Driver {
			d, err := caslock.New(queueStore{p, shared}, &caslock.Options{MinTTL: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}})
}

// A queue is all that such a store has. The explorer asks it for one request at a time, and looks at its state beside.
type queue struct {
	sync.Mutex
	values map[string]*queued
	last   int
	heard  []hearer
	since  map[uint64]time.Time // when the store had each beat of a claim first
}

// state is what nobody has to ask for. A lease whose TTL is over is one until somebody finds it so, and may be resumed until
// then; here it is over when nobody resumes it any more.
func (q *queue) state(name string) driver.State {
	q.Lock()
	defer q.Unlock()
	r, _ := record.Decode(q.now(name).Value)
	const resumed = 5 // TTLs
	r.Claims = slices.DeleteFunc(r.Claims, func(c record.Claim) bool { return q.Left(&c) < -resumed*c.TTL })
	st := r.State(q, name)
	var places []string
	for other, v := range q.values {
		if strings.HasPrefix(other, name+"\x00") && v.bytes != nil {
			places = append(places, other)
		}
	}
	slices.SortFunc(places, func(a, b string) int { return cmp.Compare(q.values[a].number, q.values[b].number) })
	if r.Beside == record.Nobody {
		places = nil // of calls that were not answered
	}
	for _, place := range places {
		var p struct {
			Claim   record.Claim
			Process string
		}
		if json.Unmarshal(q.values[place].bytes, &p) == nil && q.now("\x00"+p.Process).Value != nil { // else it is dead
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: driver.OwnerOf(p.Claim.Owner), Mode: p.Claim.Mode})
		}
	}
	return st
}

// A queue is a record.Clock of the state.
func (q *queue) Now() int64               { return time.Now().UnixMicro() }
func (q *queue) Start(*record.Claim)      {}
func (q *queue) Knows(*record.Claim) bool { return false }
func (q *queue) Left(c *record.Claim) time.Duration {
	if c.Status == record.Evicted {
		return time.Second
	}
	return c.TTL - time.Since(q.since[c.Beat])
}

type queued struct {
	bytes  []byte
	number int
	since  time.Time
	until  time.Time // zero: for ever
}

// A hearer is a watch.
type hearer struct {
	line  *explore.Line
	items chan<- caslock.Item
}

func (q *queue) now(name string) (i caslock.Item) {
	v := q.values[name]
	if v != nil && !v.until.IsZero() && time.Now().After(v.until) {
		delete(q.values, name)
		v = nil
	}
	i.Name = name
	if v != nil {
		i.Value, i.Version = v.bytes, caslock.Version(strconv.Itoa(v.number))
	}
	return i
}

func (q *queue) write(name string, bytes []byte, was caslock.Version, life time.Duration) answer {
	if q.now(name).Version != was {
		return answer{err: caslock.ErrChanged}
	}
	q.last++
	v := &queued{bytes: bytes, number: q.last, since: time.Now()}
	if life > 0 {
		v.until = time.Now().Add(life)
	}
	q.values[name] = v
	if r, err := record.Decode(bytes); err == nil && kind(name) == "" {
		for _, c := range r.Claims {
			if _, ok := q.since[c.Beat]; !ok {
				q.since[c.Beat] = time.Now()
			}
		}
	}
	i := q.now(name)
	for _, h := range q.heard {
		h.line.Push("hears of a change", func() { h.items <- i })
	}
	return answer{Item: i}
}

// queueStore is a caslock.Queuer as one process sees it.
type queueStore struct {
	process *explore.Process
	shared  *queue
}

func (s queueStore) Number(v caslock.Version) uint64 {
	n, _ := strconv.ParseUint(string(v), 10, 64) // 0 for none
	return n
}

// kind is what of a name a message is about: a record, a place or a beat.
func kind(name string) string {
	switch first, _, two := strings.Cut(name, "\x00"); {
	case !two:
		return ""
	case first == "":
		return " beat"
	}
	return " place"
}

func (s queueStore) Read(ctx context.Context, name string) (caslock.Item, error) {
	i, err := valueStore{process: s.process}.call(ctx, "read"+kind(name), func() answer {
		s.shared.Lock()
		defer s.shared.Unlock()
		i := s.shared.now(name)
		if v := s.shared.values[name]; v != nil && s.process.Name() == "checker" {
			i.Age = time.Since(v.since)
		}
		return answer{Item: i}
	})
	return i, err
}

func (s queueStore) Write(ctx context.Context, name string, bytes []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	i, err := valueStore{process: s.process}.call(ctx, "write"+kind(name), func() answer {
		s.shared.Lock()
		defer s.shared.Unlock()
		return s.shared.write(name, bytes, was, life)
	})
	return i.Version, err
}

func (queueStore) List(context.Context, string, string, int) ([]caslock.Listed, string, error) {
	return nil, "", driver.ErrUnsupported
}

// several is the answer to a question for many.
type several []caslock.Item

func (a several) String() string { return fmt.Sprintf("%d values", len(a)) }

func (s queueStore) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	return func(yield func(caslock.Item, error) bool) {
		a, err := s.process.Call(ctx, "list", "", func() any {
			s.shared.Lock()
			defer s.shared.Unlock()
			var all several
			for _, name := range slices.Sorted(maps.Keys(s.shared.values)) {
				if i := s.shared.now(name); strings.HasPrefix(name, first+"\x00") && i.Value != nil {
					all = append(all, i)
				}
			}
			return all
		})
		if err != nil {
			yield(caslock.Item{}, err)
			return
		}
		for _, i := range a.(several) {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (s queueStore) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	cut, begins, items := make(chan struct{}), make(chan struct{}), make(chan caslock.Item, 10000)
	ends := sync.OnceFunc(func() { close(cut) })
	whole := s.process.Line(ends)
	defer whole.Close()
	line := whole.Stream(ends)
	line.Send("watch", "", func() any {
		s.shared.Lock()
		defer s.shared.Unlock()
		s.shared.heard = append(s.shared.heard, hearer{line, items})
		return "watches"
	}, func(any) { close(begins) })
	select {
	case <-begins:
	case <-cut:
		return explore.ErrCut
	case <-ctx.Done():
		return ctx.Err()
	}
	begun()
	for {
		select {
		case i := <-items:
			heard(i)
		case <-cut:
			return explore.ErrCut
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
