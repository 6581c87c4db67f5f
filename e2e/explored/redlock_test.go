package explored

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestRedlock explores a quorum of three real servers, of which the clock of one is ahead, that of another is set
// by somebody, and any may restart empty.
func TestRedlock(t *testing.T) {
	var servers []*server
	for range 3 {
		servers = append(servers, startServer(t))
	}
	h := explore.Harness{Name: "Redlock", For: time.Second, Known: []string{
		"two; p2 n1 acquire 1 = restart n1; p2 n2 acquire 1 = restart n2", // two that forgot are a majority
	}, New: func(w *explore.World) func(*explore.Process) driver.Driver {
		l := newRedlockWorld(w, servers)
		return func(p *explore.Process) driver.Driver { return l.connect(t, w, p) }
	}}
	if !hasTime() {
		h.Changes, h.Scenarios = -1, []string{"two", "extend"}
	}
	explore.Run(t, h)
}

// remembersFor is how long a server must be known to remember: no lease of a scenario is longer.
const remembersFor = 4 * time.Second

// A redlock is the servers of one schedule.
type redlock struct {
	nodes []*redlockNode
}

type redlockNode struct {
	*network
	sees   func(resource string) driver.State
	keep   func(offset time.Duration) // its clock
	offset time.Duration              // of its clock to the others
	forgot bool                       // it has restarted
}

func newRedlockWorld(w *explore.World, servers []*server) *redlock {
	l := &redlock{}
	for i, s := range servers {
		n := &redlockNode{network: s.network(fmt.Sprint("n", i+1))}
		s.remember(remembersFor)
		n.sees, n.keep = n.watch(w), n.keepsTime()
		w.OnRestart(n.node, func() {
			n.restart()
			n.forgot = true
		})
		l.nodes = append(l.nodes, n)
	}
	l.nodes[1].offset = 3 * time.Second / 2
	for name, step := range map[string]time.Duration{"+4s": 4 * time.Second, "-20s": -20 * time.Second} {
		w.OnForce("n1's clock "+name, false, func() { l.nodes[0].offset += step })
	}
	w.OnClock(func(offset time.Duration) {
		for _, n := range l.nodes {
			n.keep(offset + n.offset)
		}
	})
	w.OnState(l.state)
	return l
}

// remember has the server be known to remember for so long, as a process that saw it before would have left it.
func (s *server) remember(d time.Duration) {
	_, info, _ := strings.Cut(string(s.once(command("INFO", "server"))), "run_id:")
	run, _, _ := strings.Cut(info, "\r")
	s.ask(command("SET", redislock.DefaultPrefix+"\x1fm", fmt.Sprintf("%s before %d", run, d.Milliseconds())))
}

func (l *redlock) connect(t *testing.T, w *explore.World, p *explore.Process) driver.Driver {
	var clients []redis.UniversalClient
	for _, n := range l.nodes {
		c := redis.NewClient(n.options(p))
		w.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	d, err := redislock.NewRedlock(clients, &redislock.Options{MinUptime: remembersFor}, &quorum.Options{NodeTimeout: 600 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// state is who has a lease at most servers. One that restarted has forgotten, but grants nothing for longer
// than any lease that it had.
func (l *redlock) state(resource string) driver.State {
	forgot := 0
	found := make(map[string][]driver.Holder)
	for _, n := range l.nodes {
		if n.forgot {
			forgot++
		}
		for _, h := range n.sees(resource).Holders {
			found[h.Owner.Reveal()] = append(found[h.Owner.Reveal()], h)
		}
	}
	state := driver.State{Resource: resource}
	for _, all := range found {
		slices.SortFunc(all, func(a, b driver.Holder) int { return int(b.Left - a.Left) })
		if most := len(l.nodes)/2 + 1 - forgot; len(all) >= most {
			state.Holders = append(state.Holders, all[max(most, 1)-1])
		}
	}
	return state
}
