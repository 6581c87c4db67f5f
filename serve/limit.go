package serve

import (
	"cmp"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
)

// Limits of one instance. A call beyond one is refused with 429, and has changed nothing.
type Limits struct {
	Waiting     int     // calls that wait for other holders, of all clients; 0: 20,000
	WaitingEach int     // of one client; 0: 10,000
	Streams     int     // event streams, of all clients; 0: 5,000
	StreamsEach int     // of one client; 0: 1,000
	Rate        float64 // calls a second of one client, except renewals and releases; 0: no limit
}

const (
	defaultWaiting, defaultWaitingEach = 20_000, 10_000
	defaultStreams, defaultStreamsEach = 5_000, 1_000
	// burst is how long an idle client may save up calls.
	burst = 2 * time.Second
	// keepUsage is how long a client is remembered at least after its last call.
	keepUsage = time.Minute
)

// errLimit refuses what exceeds a limit.
var errLimit = errors.New("too many calls at once: try again later")

// A usage is what a client uses of the limits.
type usage struct {
	open  [kinds]int
	calls float64   // calls that it might make at this time:
	at    time.Time // of its last call that counts
}

// A kind is something that stays open for long: a call that waits for other holders, or a stream of
// events.
type kind int

const (
	waits kind = iota
	streams
	kinds // how many kinds there are
)

// A gate keeps clients within the limits.
type gate struct {
	limits     Limits
	most, each [kinds]int // limits for all clients, and for one
	mu         sync.Mutex
	all        map[string]*usage // guarded by mu
	open       [kinds]int        // for all clients
	swept      time.Time         // guarded by mu
}

func (g *gate) init(l Limits) {
	g.most = [kinds]int{cmp.Or(l.Waiting, defaultWaiting), cmp.Or(l.Streams, defaultStreams)}
	g.each = [kinds]int{cmp.Or(l.WaitingEach, defaultWaitingEach), cmp.Or(l.StreamsEach, defaultStreamsEach)}
	g.limits, g.all, g.swept = l, make(map[string]*usage), time.Now()
}

// of returns a client's usage. Requires mu.
func (g *gate) of(client string, now time.Time) *usage {
	if now.Sub(g.swept) > keepUsage {
		g.swept = now
		for name, u := range g.all {
			if u.open == [kinds]int{} && now.Sub(u.at) > keepUsage && u.mayCall(now, &g.limits) == g.limits.burst() {
				delete(g.all, name)
			}
		}
	}
	u := g.all[client]
	if u == nil {
		u = &usage{calls: g.limits.burst(), at: now}
		g.all[client] = u
	}
	return u
}

// burst returns how many calls a client may make at once: at least one, however low its rate.
func (l *Limits) burst() float64 { return max(l.Rate*burst.Seconds(), 1) }

// mayCall returns how many calls the client may make now.
func (u *usage) mayCall(now time.Time, of *Limits) float64 {
	return min(u.calls+now.Sub(u.at).Seconds()*of.Rate, of.burst())
}

// pass counts a call, and reports whether it is within the rate.
func (g *gate) pass(client string) bool {
	if g.limits.Rate <= 0 {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	u := g.of(client, now)
	u.calls = u.mayCall(now, &g.limits)
	if u.at = now; u.calls < 1 {
		return false
	}
	u.calls--
	return true
}

// enter opens one of kind k, if there is room. The caller must then call leave.
func (g *gate) enter(client string, k kind) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.of(client, time.Now())
	if g.open[k] >= g.most[k] || u.open[k] >= g.each[k] {
		return nil, false
	}
	g.open[k]++
	u.open[k]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open[k]--
		u.open[k]--
	}, true
}

// count returns how many of kind k are open.
func (g *gate) count(k kind) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[k]
}

func (s *Server) tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	s.refuse(w, http.StatusTooManyRequests, wire.CodeLimit, errLimit)
}
