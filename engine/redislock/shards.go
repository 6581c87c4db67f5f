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

// shards are a subscriber's sharded subscriptions on Cluster: a message about a resource stays
// on the node that serves its slot, where a plain one would go to all nodes. There is one
// connection to each node where somebody waits, and on it one channel for each slot.
// Slots move between nodes: what a node no longer serves is subscribed anew elsewhere.
type shards struct {
	subscriber *subscriber
	cluster    *redis.ClusterClient
	work       chan struct{} // has room for one: there may be something to do

	running bool                              // guarded by subscriber.mu
	lines   map[int]*shard                    // guarded by subscriber.mu; by slot
	nodes   map[*redis.Client]*nodeSubscriber // guarded by subscriber.mu; by node
}

// A shard is the line of one slot, guarded by subscriber.mu.
type shard struct {
	line
	slot int
	on   *nodeSubscriber // nil: it must be subscribed
}

// A nodeSubscriber is the connection to one node.
type nodeSubscriber struct {
	sub    *redis.PubSub
	shards map[string]*shard // guarded by subscriber.mu; by channel
}

func newShards(e *subscriber, cluster *redis.ClusterClient) *shards {
	return &shards{
		subscriber: e, cluster: cluster, work: make(chan struct{}, 1),
		lines: make(map[int]*shard), nodes: make(map[*redis.Client]*nodeSubscriber),
	}
}

// channel has a hash tag of its slot. Its beginning tells the scripts to use SPUBLISH.
func (s *shards) channel(slot int) string {
	return "leasehold:s:" + s.subscriber.id + ":{" + slotTag(slot) + "}"
}

// use returns the line of slot. Requires subscriber.mu.
func (s *shards) use(slot int) *line {
	sh := s.lines[slot]
	if sh == nil {
		sh = &shard{slot: slot, line: line{hearing: make(chan struct{})}}
		s.lines[slot] = sh
		s.signal()
	}
	if !s.running && s.subscriber.ctx.Err() == nil {
		s.running = true
		s.subscriber.done.Go(s.run)
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
	for s.subscriber.ctx.Err() == nil {
		select {
		case <-s.work:
		case <-s.subscriber.ctx.Done():
			return
		}
		if s.subscribeAll() {
			pause = resubscribeFirst
			continue
		}
		// A node is away, or slots have moved.
		s.cluster.ReloadState(s.subscriber.ctx)
		s.subscriber.sleep(pause)
		pause = min(2*pause, resubscribeLast)
		s.signal()
	}
}

// subscribeAll reports whether all that needs it could be asked for.
func (s *shards) subscribeAll() bool {
	s.subscriber.mu.Lock()
	var todo []*shard
	for _, sh := range s.lines {
		if sh.on == nil {
			todo = append(todo, sh)
		}
	}
	s.subscriber.mu.Unlock()
	ok := true
	for _, sh := range todo {
		ok = s.subscribe(sh) && ok
	}
	return ok
}

func (s *shards) subscribe(sh *shard) bool {
	channel := s.channel(sh.slot)
	node, err := s.cluster.MasterForKey(s.subscriber.ctx, channel)
	if err != nil {
		return false
	}
	s.subscriber.mu.Lock()
	st := s.nodes[node]
	isNew := st == nil
	if isNew {
		st = &nodeSubscriber{sub: node.SSubscribe(s.subscriber.ctx), shards: make(map[string]*shard)}
		s.nodes[node] = st
	}
	sh.on, st.shards[channel] = st, sh
	s.subscriber.mu.Unlock()
	// One channel at a time: channels of several slots in one command are refused.
	err = st.sub.SSubscribe(s.subscriber.ctx, channel)
	if isNew {
		s.subscriber.done.Go(func() { s.receive(node, st) })
	}
	return err == nil
}

// receive hears one node until its connection breaks or it refuses a slot. Then all its
// channels are subscribed anew.
func (s *shards) receive(node *redis.Client, st *nodeSubscriber) {
	s.subscriber.receive(st.sub, func(m *redis.Subscription) { s.subscribed(st, m) }, func() { s.dropIdle(st) })
	st.sub.Close() // says at most that it is closed
	s.subscriber.mu.Lock()
	delete(s.nodes, node)
	for _, sh := range st.shards {
		sh.on = nil
		s.subscriber.deaf(&sh.line)
	}
	s.subscriber.mu.Unlock()
	s.cluster.ReloadState(s.subscriber.ctx)
	s.subscriber.sleep(resubscribeFirst)
	s.signal()
}

// subscribed is what a node says about one channel. It ends subscriptions by itself when
// a slot moves away.
func (s *shards) subscribed(st *nodeSubscriber, m *redis.Subscription) {
	s.subscriber.mu.Lock()
	defer s.subscriber.mu.Unlock()
	sh := st.shards[m.Channel]
	switch {
	case sh == nil: // dropped meanwhile
	case m.Kind == "ssubscribe":
		s.subscriber.onSubscribed(&sh.line)
	case m.Kind == "sunsubscribe":
		delete(st.shards, m.Channel)
		sh.on = nil
		s.subscriber.deaf(&sh.line)
		s.cluster.ReloadState(s.subscriber.ctx)
		s.signal()
	}
}

// dropIdle ends the subscriptions where nobody has waited for a while.
func (s *shards) dropIdle(st *nodeSubscriber) {
	s.subscriber.mu.Lock()
	var idle []string
	for channel, sh := range maps.Clone(st.shards) {
		if sh.users == 0 && time.Since(sh.left) > idleShard {
			idle = append(idle, channel)
			delete(st.shards, channel)
			delete(s.lines, sh.slot)
		}
	}
	s.subscriber.mu.Unlock()
	for channel := range slices.Values(idle) {
		if st.sub.SUnsubscribe(s.subscriber.ctx, channel) != nil {
			return // the connection is broken, which ends them all
		}
	}
}
