package explored

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestZooKeeper explores zklock, and go-zookeeper below it, over a keeper in place of ZooKeeper.
func TestZooKeeper(t *testing.T) {
	known := []string{
		// A grant that came while its claim was being released notified it.
		"recall; p2 hears 1 = lose; p2 watches 1 answer = hold 3/4; p2 list 2 answer = cancel c2",
	}
	h := explore.Harness{Name: "ZooKeeper's stand-in", Known: known, New: func(w *explore.World) func(*explore.Process) driver.Driver {
		k := newKeeper()
		w.Cleanup(k.close)
		w.OnState(k.state)
		return func(p *explore.Process) driver.Driver {
			d, err := zklock.New([]string{"127.0.0.1:1"}, &zklock.Options{
				SessionTimeout: 3 * time.Second,
				Dial: func(string, string, time.Duration) (net.Conn, error) {
					return dialKeeper(k, p), nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if p.Name() == "p1" {
				return recalled{d}
			}
			return d
		}
	}}
	exploreStandIn(t, h, "two", "shared", "weights", "crowd", "crowds", "recall")
}

// recalled is a driver all of whose holders ask for recalls.
type recalled struct{ *zklock.Driver }

func (d recalled) Claim(req driver.Request) (driver.Claim, error) {
	if req.Wanted == nil {
		req.Wanted = func() {}
	}
	return d.Driver.Claim(req)
}

// state is who has a node of a resource, in order.
func (k *keeper) state(resource string) driver.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	state := driver.State{Resource: resource, Limit: k.limit(resource)}
	names, claims := k.queue(resource)
	holding := k.granted.holding(names, claims, state.Limit)
	for i, name := range names {
		n, c := k.nodes[name], claims[i]
		var about struct{ Owner string }
		s := k.sessions[n.owner]
		if err := json.Unmarshal(n.data, &about); err != nil || s == nil {
			continue
		}
		if i < holding {
			state.Holders = append(state.Holders, driver.Holder{
				Owner: driver.OwnerOf(about.Owner), Mode: c.Mode, Limit: c.Limit, Weight: c.Weight, Left: time.Until(s.ends),
			})
		} else {
			state.Waiters = append(state.Waiters, driver.Waiter{Owner: driver.OwnerOf(about.Owner), Mode: c.Mode, Weight: c.Weight})
		}
	}
	return state
}

// queue are the paths of the nodes of a resource, in order, and what they say of their claims. Requires k.mu.
func (k *keeper) queue(resource string) (names []string, claims []queue.Claim) {
	above := zklock.DefaultPrefix + "/" + resource
	names = k.childrenOf(above)
	number := func(name string) string { return name[max(0, len(name)-10):] }
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	for i, name := range names {
		c := queue.Claim{Limit: numberBehind(name, "-limit-"), Weight: numberBehind(name, "-weight-")}
		if strings.Contains(name, "READ") || c.Weight > 0 {
			c.Mode = driver.Shared
		}
		names[i], claims = above+"/"+name, append(claims, c)
	}
	return names, claims
}

// numberBehind is the number that follows a mark in a name; 0: none does.
func numberBehind(name, mark string) (n int) {
	if _, rest, ok := strings.Cut(name, mark); ok {
		number, _, _ := strings.Cut(rest, "-")
		n, _ = strconv.Atoi(number)
	}
	return n
}

// limit is what an operator has set for a resource; 0: nothing. Requires k.mu.
func (k *keeper) limit(resource string) int {
	var set struct{ Limit int }
	if n := k.nodes[zklock.DefaultPrefix+"/%limits/"+resource]; n != nil {
		json.Unmarshal(n.data, &set) // 0 of what is no limit
	}
	return set.Limit
}

// grant notes who holds, after a change. Requires k.mu.
func (k *keeper) grant() {
	for _, resource := range resources {
		names, claims := k.queue(resource)
		k.granted.holding(names, claims, k.limit(resource))
	}
}

// close ends what may still happen.
func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.sessions {
		s.end.Stop()
	}
}

// A stream is one connection of a driver to a keeper.
type stream struct {
	peer *peer
	conn *conn
	line *explore.Line // nil: no network is between

	mu       sync.Mutex
	unparsed []byte // guarded by mu
	greeted  bool   // guarded by mu
}

// dialKeeper connects a process with a keeper, or without one whoever asks it directly.
func dialKeeper(k *keeper, p *explore.Process) net.Conn {
	x := &stream{}
	x.conn = newConn(x.wrote, x.closed)
	x.peer = &peer{k: k, push: x.push, hangUp: func() { x.conn.fail(errBroken) }}
	if p == nil {
		return x.conn
	}
	x.line = p.Line(func() {
		x.peer.close()
		x.conn.fail(errBroken)
	})
	x.line.Once()
	x.peer.hangUp = func() { x.line.Push("ends", func() { x.conn.fail(errBroken) }) }
	return x.conn
}

// closed: the driver has left. What it has sent may still get to the server.
func (x *stream) closed() {
	x.peer.close()
	if x.line != nil {
		x.line.Close()
	}
}

// push brings an event, in its place before an answer that tells of the same change: what is sent at
// once is put in the order of the names.
func (x *stream) push(frame []byte) {
	if x.line == nil {
		x.conn.receive(frame)
		return
	}
	x.line.Push("hears", func() { x.conn.receive(frame) })
}

// wrote passes on what a driver wrote.
func (x *stream) wrote(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unparsed = append(x.unparsed, b...)
	for len(x.unparsed) >= 4 {
		n := 4 + int(binary.BigEndian.Uint32(x.unparsed))
		if len(x.unparsed) < n {
			return
		}
		body := x.unparsed[4:n:n]
		x.unparsed = x.unparsed[n:]
		serve := x.peer.serve
		what := opNames[int32(binary.BigEndian.Uint32(body[4:]))]
		if !x.greeted {
			x.greeted, serve, what = true, x.peer.greet, "greet"
		}
		x.send(what, func() any { return zframe(serve(&jute{body})) })
	}
}

// A zframe is an answer of the keeper; nil: there is none.
type zframe []byte

func (f zframe) String() string {
	if len(f) < 20 {
		return fmt.Sprintf("%d bytes", len(f))
	}
	return fmt.Sprintf("zxid %d, code %d, %q", int64(binary.BigEndian.Uint64(f[8:])), int32(binary.BigEndian.Uint32(f[16:])), f[20:])
}

func (x *stream) send(what string, serve func() any) {
	arrive := func(answer any) {
		if f := answer.(zframe); f != nil {
			x.conn.receive(f)
		}
	}
	switch {
	case x.line == nil:
		arrive(serve())
	case what == "ping":
		x.line.Beat(what, serve, arrive)
	default:
		x.line.Send(what, "", serve, arrive)
	}
}
