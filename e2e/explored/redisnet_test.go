package explored

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// A network is what is between the drivers of one schedule and a server.
type network struct {
	server *server
	node   string // what the server is called; "": it is the only one

	mu     sync.Mutex // held while the server answers
	wires  []*wire    // guarded by mu; those that listen
	served int        // guarded by mu; requests, and what else changes what the server has
	asked  [][]byte   // guarded by mu; what the one who watches asks
	known  []reply    // guarded by mu; what the server has said to that
	at     time.Time  // guarded by mu; when it did
}

// network has the server forget what was before.
func (s *server) network(node string) *network {
	s.reset()
	return &network{server: s, node: node}
}

// keepsTime has the server's clock stand at an instant. What ends by it changes what the server has.
func (n *network) keepsTime() (set func(offset time.Duration)) {
	var ahead time.Duration
	return func(offset time.Duration) {
		n.server.clock.Stop(time.Now().Add(offset))
		if offset != ahead {
			ahead = offset
			n.disturb(func() {})
		}
	}
}

// restart has the server forget all.
func (n *network) restart() { n.disturb(n.server.restart) }

// disturb does what changes what the server has.
func (n *network) disturb(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	n.served++
	n.known = nil
}

// watch lets the explorer see what the server has, by a driver with no network before it. It
// is asked again when something was served, or has ended since.
func (n *network) watch(w *explore.World) (sees func(resource string) driver.State) {
	d, err := redislock.Open(n.options(nil), nil)
	if err != nil {
		n.server.t.Fatal(err)
	}
	w.Cleanup(func() { d.Close() })
	seen := make(map[string]*sight)
	return func(resource string) driver.State {
		s := seen[resource]
		if s == nil || s.served != n.served || !s.lasts() {
			s = n.inspect(d, resource)
			seen[resource] = s
		}
		return s.now()
	}
}

// A sight is what the server had at an instant.
type sight struct {
	driver.State
	at     time.Time
	served int
}

func (n *network) inspect(d *redislock.Driver, resource string) *sight {
	state, err := d.Inspect(context.Background(), resource)
	if err != nil {
		n.server.t.Errorf("inspect: %v", err)
	}
	return &sight{state, time.Now(), n.served}
}

// lasts reports whether nothing has ended since.
func (s *sight) lasts() bool {
	passed := time.Since(s.at)
	return passed < time.Second && !slices.ContainsFunc(s.Holders, func(h driver.Holder) bool { return h.Left <= passed })
}

func (s *sight) now() driver.State {
	state := s.State
	state.Holders = slices.Clone(state.Holders)
	for i := range state.Holders {
		state.Holders[i].Left -= time.Since(s.at)
	}
	return state
}

// options are those of a client that goes through the explorer, or without a process to the server.
func (n *network) options(p *explore.Process) *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dial(p), nil },
	}
}

// A wire is one connection of a driver.
type wire struct {
	network  *network
	line     *explore.Line // nil: no network is between
	slow     bool          // to write
	conn     *conn
	mu       sync.Mutex
	unparsed []byte   // guarded by mu
	open     int      // guarded by mu; requests without an answer
	channels []string // guarded by network.mu; that it listens to
	gone     bool     // guarded by network.mu
}

func (n *network) dial(p *explore.Process) net.Conn {
	x := &wire{network: n}
	x.conn = newConn(x.wrote, x.closed)
	if p != nil {
		x.slow = p.Name() == "p1"
		x.line = p.Line(func() {
			x.leaves()
			x.conn.fail(errBroken)
		})
	}
	return x.conn
}

// closed: the driver has left. What it has sent may still get to the server.
func (x *wire) closed() {
	x.leaves()
	if x.line != nil {
		x.line.Close()
	}
}

// leaves notes that nobody is behind the connection any more, which the server hears of one that
// listens: it has nothing under way.
func (x *wire) leaves() {
	n := x.network
	n.mu.Lock()
	defer n.mu.Unlock()
	x.gone = true
	n.wires = slices.DeleteFunc(n.wires, func(o *wire) bool { return o == x })
	for _, channel := range x.channels {
		if !slices.ContainsFunc(n.wires, func(o *wire) bool { return slices.Contains(o.channels, channel) }) {
			n.server.ask(command("UNSUBSCRIBE", channel))
		}
	}
}

// slowWrite is how long a process writes whose system has little room for what it sends: others call meanwhile,
// and what they send is written together.
const slowWrite = 3 * time.Millisecond

// wrote passes on what a driver wrote. Of one that is slow, what comes first has left before the rest.
func (x *wire) wrote(b []byte) {
	x.mu.Lock()
	whole, rest := frames(append(x.unparsed, b...))
	x.unparsed = rest
	idle := x.open == 0
	x.mu.Unlock()
	for i, frame := range whole {
		what := words(frame)
		if x.line == nil || idle && isAside(what[0]) {
			x.conn.receive(x.aside(frame, what[0]))
			continue
		}
		idle = false
		x.send(frame, what)
		if x.slow && i == 0 && isScript(what[0]) { // go-redis would hold a mutex meanwhile
			time.Sleep(slowWrite)
		}
	}
	x.network.note(func(b *batches) { b.written = max(b.written, len(whole)) })
}

func (n *network) note(f func(b *batches)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.server.batches)
}

// isAside: what a client asks about the connection before anything else is no event. INFO is: it stands for
// connecting.
func isAside(command string) bool {
	switch strings.ToUpper(command) {
	case "HELLO", "CLIENT", "AUTH", "SELECT", "PING":
		return true
	}
	return false
}

func isScript(command string) bool { return strings.HasPrefix(command, "EVAL") }

// aside is an answer without an event.
func (x *wire) aside(frame []byte, what string) reply {
	n := x.network
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case isScript(what): // of the one who watches
		return n.watched(frame)
	case strings.EqualFold(what, "PING"):
		return x.pong()
	}
	return n.server.once(frame)
}

// resources are what an explorer's clients use.
var resources = [...]string{"x", "y"}

// watched is the answer to the one who watches. Requires n.mu.
func (n *network) watched(frame []byte) reply {
	i := slices.IndexFunc(n.asked, func(b []byte) bool { return bytes.Equal(b, frame) })
	if i >= 0 && i < len(n.known) && n.at.Equal(time.Now()) {
		return n.known[i]
	}
	if i < 0 && len(n.asked) < len(resources) {
		n.asked = append(n.asked, slices.Clone(frame))
	}
	return n.server.ask(frame).answers[0]
}

// pong is the answer to a PING, which only clients look at that listen. Requires network.mu.
func (x *wire) pong() reply {
	if len(x.channels) == 0 {
		return reply("+PONG\r\n")
	}
	return reply("*2\r\n$4\r\npong\r\n$0\r\n\r\n")
}

// send has the explorer decide what becomes of a request.
func (x *wire) send(frame []byte, what []string) {
	x.count(1)
	send, name := x.line.Send, x.network.server.nameOf(frame, what)
	if name == connects {
		send = func(what, _ string, serve func() any, arrive func(any)) { x.line.Dial(what, serve, arrive) }
	}
	if n := x.network.node; n != "" {
		name = n + " " + name
	}
	send(name, x.network.node, func() any { return x.serve(frame, what) }, func(answer any) {
		x.count(-1)
		x.conn.receive(answer.(reply))
	})
}

func (x *wire) count(n int) {
	x.mu.Lock()
	x.open += n
	open := x.open
	x.mu.Unlock()
	x.network.note(func(b *batches) { b.onTheWay = max(b.onTheWay, open) })
}

// connects is what INFO stands for, as the first request on a connection that others follow.
const connects = "connect"

// nameOf is what people call a request. Those for the other resource are told apart.
func (s *server) nameOf(frame []byte, what []string) string {
	name := strings.ToUpper(what[0])
	switch name {
	case "INFO":
		return connects
	case "EVALSHA":
		name = cmp.Or(s.names[what[1]], name)
	case "EVAL": // the server has lost it
		name = s.names[shaOf(what[1])] + " whole"
	}
	if bytes.Contains(frame, []byte("lock:y")) && !bytes.Contains(frame, []byte("lock:x")) {
		name += " y"
	}
	return name
}

// serve has the server answer, and passes on what others hear.
func (x *wire) serve(frame []byte, what []string) reply {
	n := x.network
	n.mu.Lock()
	defer n.mu.Unlock()
	switch strings.ToUpper(what[0]) {
	case "INFO":
		return n.server.once(frame)
	case "PING":
		return x.pong()
	case "WAIT": // all replicas have it
		return reply(":1\r\n")
	case "SUBSCRIBE":
		if x.gone {
			return nil
		}
		if len(x.channels) == 0 {
			n.wires = append(n.wires, x)
		}
		x.channels = what[1:]
		return x.subscribe()
	}
	n.served++
	now := n.server.ask(append([][]byte{frame}, n.asked...)...)
	n.known, n.at = now.answers[1:], time.Now()
	for _, message := range now.told {
		n.tell(message)
	}
	return now.answers[0]
}

// subscribe has the server confirm each channel, as it does for one connection that listens to them all.
// Requires network.mu.
func (x *wire) subscribe() (all reply) {
	for i, channel := range x.channels {
		x.network.server.ask(command("SUBSCRIBE", channel))
		all = fmt.Appendf(all, "*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n", len(channel), channel, i+1)
	}
	return all
}

// tell passes a message on to those who listen. Requires n.mu.
func (n *network) tell(message reply) {
	for _, x := range n.wires {
		if slices.Contains(x.channels, words(message)[1]) {
			x.line.Push(strings.TrimSpace(n.node+" hears"), func() { x.conn.receive(message) })
		}
	}
}
