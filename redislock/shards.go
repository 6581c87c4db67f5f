package redislock

import (
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// idleShard is how long a shard channel outlives its last waiter: who waits once often
// waits again.
const idleShard = 10 * time.Second

// shards are an ear's sharded subscriptions on Cluster: a message about a resource stays
// on the node that serves its slot, where a plain one would go to all nodes. There is one
// connection to each node where somebody waits, and on it one channel for each slot.
// Slots move between nodes: what a node no longer serves is subscribed anew elsewhere.
type shards struct {
	ear     *ear
	cluster *redis.ClusterClient
	work    chan struct{} // has room for one: there may be something to do

	running  bool                       // guarded by ear.mu
	lines    map[int]*shard             // guarded by ear.mu; by slot
	stations map[*redis.Client]*station // guarded by ear.mu; by node
}

// A shard is the line of one slot, guarded by ear.mu.
type shard struct {
	line
	slot    int
	station *station // nil: it must be subscribed
}

// A station is the connection to one node.
type station struct {
	sub    *redis.PubSub
	shards map[string]*shard // guarded by ear.mu; by channel
}

func newShards(e *ear, cluster *redis.ClusterClient) *shards {
	return &shards{
		ear: e, cluster: cluster, work: make(chan struct{}, 1),
		lines: make(map[int]*shard), stations: make(map[*redis.Client]*station),
	}
}

// channel has a hash tag of its slot. Its beginning tells the scripts to use SPUBLISH.
func (s *shards) channel(slot int) string {
	return "leasehold:s:" + s.ear.id + ":{" + slotTag(slot) + "}"
}

// use returns the line of slot. Requires ear.mu.
func (s *shards) use(slot int) *line {
	sh := s.lines[slot]
	if sh == nil {
		sh = &shard{slot: slot, line: line{hearing: make(chan struct{})}}
		s.lines[slot] = sh
		s.signal()
	}
	if !s.running && s.ear.ctx.Err() == nil {
		s.running = true
		s.ear.done.Go(s.run)
	}
	return &sh.line
}

func (s *shards) signal() {
	select {
	case s.work <- struct{}{}:
	default: // there is one already
	}
}

// run subscribes what must be until close.
func (s *shards) run() {
	pause := resubscribeFirst
	for s.ear.ctx.Err() == nil {
		select {
		case <-s.work:
		case <-s.ear.ctx.Done():
			return
		}
		if s.subscribeAll() {
			pause = resubscribeFirst
			continue
		}
		// A node is away, or slots have moved.
		s.cluster.ReloadState(s.ear.ctx)
		s.ear.sleep(pause)
		pause = min(2*pause, resubscribeLast)
		s.signal()
	}
}

// subscribeAll reports whether all that needs it could be asked for.
func (s *shards) subscribeAll() bool {
	s.ear.mu.Lock()
	var todo []*shard
	for _, sh := range s.lines {
		if sh.station == nil {
			todo = append(todo, sh)
		}
	}
	s.ear.mu.Unlock()
	ok := true
	for _, sh := range todo {
		ok = s.subscribe(sh) && ok
	}
	return ok
}

func (s *shards) subscribe(sh *shard) bool {
	channel := s.channel(sh.slot)
	node, err := s.cluster.MasterForKey(s.ear.ctx, channel)
	if err != nil {
		return false
	}
	s.ear.mu.Lock()
	st := s.stations[node]
	isNew := st == nil
	if isNew {
		st = &station{sub: node.SSubscribe(s.ear.ctx), shards: make(map[string]*shard)}
		s.stations[node] = st
	}
	sh.station, st.shards[channel] = st, sh
	s.ear.mu.Unlock()
	// One channel at a time: channels of several slots in one command are refused.
	err = st.sub.SSubscribe(s.ear.ctx, channel)
	if isNew {
		s.ear.done.Go(func() { s.receive(node, st) })
	}
	return err == nil
}

// receive hears one node until its connection breaks or it refuses a slot. Then all its
// channels are subscribed anew.
func (s *shards) receive(node *redis.Client, st *station) {
	s.ear.receive(st.sub, func(m *redis.Subscription) { s.subscribed(st, m) }, func() { s.dropIdle(st) })
	st.sub.Close() // says at most that it is closed
	s.ear.mu.Lock()
	delete(s.stations, node)
	for _, sh := range st.shards {
		sh.station = nil
		s.ear.deaf(&sh.line)
	}
	s.ear.mu.Unlock()
	s.cluster.ReloadState(s.ear.ctx)
	s.ear.sleep(resubscribeFirst)
	s.signal()
}

// subscribed is what a node says about one channel. It ends subscriptions by itself when
// a slot moves away.
func (s *shards) subscribed(st *station, m *redis.Subscription) {
	s.ear.mu.Lock()
	defer s.ear.mu.Unlock()
	sh := st.shards[m.Channel]
	switch {
	case sh == nil: // dropped meanwhile
	case m.Kind == "ssubscribe":
		s.ear.hearsNow(&sh.line)
	case m.Kind == "sunsubscribe":
		delete(st.shards, m.Channel)
		sh.station = nil
		s.ear.deaf(&sh.line)
		s.cluster.ReloadState(s.ear.ctx)
		s.signal()
	}
}

// dropIdle ends the subscriptions where nobody has waited for a while.
func (s *shards) dropIdle(st *station) {
	s.ear.mu.Lock()
	var idle []string
	for channel, sh := range maps.Clone(st.shards) {
		if sh.users == 0 && time.Since(sh.left) > idleShard {
			idle = append(idle, channel)
			delete(st.shards, channel)
			delete(s.lines, sh.slot)
		}
	}
	s.ear.mu.Unlock()
	for channel := range slices.Values(idle) {
		if st.sub.SUnsubscribe(s.ear.ctx, channel) != nil {
			return // the connection is broken, which ends them all
		}
	}
}
