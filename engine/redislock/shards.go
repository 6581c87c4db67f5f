package redislock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/internal/abandon"
)

// idleShard is how long a subscription outlives its last waiter, because another often follows.
const idleShard = 10 * time.Second

// shards are a subscriber's sharded subscriptions on Cluster. A message to a shard channel stays on
// the node that serves its slot, while a plain message goes to all nodes. There is one connection
// to each node where somebody waits, with one channel for each slot. When a slot moves to another
// node, its channel is subscribed there.
type shards struct {
	subscriber *subscriber
	cluster    *redis.ClusterClient
	work       chan struct{} // has room for one; a value means that there may be something to do

	running bool                              // guarded by subscriber.mu
	lines   map[int]*shard                    // guarded by subscriber.mu; by slot
	nodes   map[*redis.Client]*nodeSubscriber // guarded by subscriber.mu; by node
}

// A shard is the line of one slot, guarded by subscriber.mu.
type shard struct {
	line
	slot int
	on   *nodeSubscriber // nil: it is not subscribed yet
}

// A nodeSubscriber is the connection to one node.
type nodeSubscriber struct {
	sub    *redis.PubSub
	shards map[string]*shard // guarded by subscriber.mu; by channel
	asking bool              // guarded by subscriber.mu; go-redis subscribes, which takes long if the node hangs
}

func newShards(e *subscriber, cluster *redis.ClusterClient) *shards {
	return &shards{
		subscriber: e, cluster: cluster, work: make(chan struct{}, 1),
		lines: make(map[int]*shard), nodes: make(map[*redis.Client]*nodeSubscriber),
	}
}

// channel returns the channel of a slot, which has a hash tag of that slot. By its beginning the
// scripts know to use SPUBLISH.
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
	s.running = s.running || s.subscriber.life.Go(s.run)
	return &sh.line
}

func (s *shards) signal() {
	select {
	case s.work <- struct{}{}:
	default: // a signal is pending already
	}
}

// run subscribes the shards that need it until the driver is closed.
func (s *shards) run() {
	pause := resubscribeFirst
	for s.subscriber.life.Err() == nil {
		select {
		case <-s.work:
		case <-s.subscriber.life.Done():
			return
		}
		if s.subscribeAll() {
			pause = resubscribeFirst
			continue
		}
		// A node is unreachable, or slots have moved.
		s.cluster.ReloadState(s.subscriber.life)
		s.subscriber.sleep(pause)
		pause = min(2*pause, resubscribeLast)
		s.signal()
	}
}

// subscribeAll subscribes the shards that need it. It reports whether all requests could be sent,
// except for nodes that have not taken the one before.
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
		if s.subscriber.life.Err() != nil {
			return false
		}
		ok = s.subscribe(sh) && ok
	}
	return ok
}

func (s *shards) subscribe(sh *shard) bool {
	channel := s.channel(sh.slot)
	node, err := s.cluster.MasterForKey(s.subscriber.life, channel)
	if err != nil {
		return false
	}
	s.subscriber.mu.Lock()
	st := s.nodes[node]
	isNew := st == nil
	if isNew {
		st = &nodeSubscriber{sub: node.SSubscribe(s.subscriber.life), shards: make(map[string]*shard)}
		s.nodes[node] = st
	}
	if st.asking {
		s.subscriber.mu.Unlock()
		return true
	}
	sh.on, st.shards[channel], st.asking = st, sh, true
	s.subscriber.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.subscriber.life, leaveAfter)
	defer cancel()
	_, err = abandon.Call(ctx, func() (any, error) {
		// One channel at a time: channels of several slots in one command are refused.
		err := st.sub.SSubscribe(s.subscriber.life, channel)
		s.subscriber.mu.Lock()
		defer s.subscriber.mu.Unlock()
		st.asking = false
		s.signal()
		return nil, err
	})
	if isNew {
		if receive := func() { s.receive(node, st) }; !s.subscriber.life.Go(receive) {
			receive() // only closes the subscription
		}
	}
	return err == nil
}

// receive reads from one node until its connection breaks or the node refuses a slot. Then all its
// channels are subscribed anew.
func (s *shards) receive(node *redis.Client, st *nodeSubscriber) {
	s.subscriber.receive(st.sub, func(m *redis.Subscription) { s.subscribed(st, m) }, func() { s.dropIdle(st) })
	st.sub.Close() // its only error says that it is closed
	s.subscriber.mu.Lock()
	delete(s.nodes, node)
	for _, sh := range st.shards {
		sh.on = nil
		s.subscriber.deaf(&sh.line)
	}
	s.subscriber.mu.Unlock()
	s.cluster.ReloadState(s.subscriber.life)
	s.subscriber.sleep(resubscribeFirst)
	s.signal()
}

// subscribed handles what a node says about one channel. The node ends a subscription itself when
// the slot moves away.
func (s *shards) subscribed(st *nodeSubscriber, m *redis.Subscription) {
	s.subscriber.mu.Lock()
	defer s.subscriber.mu.Unlock()
	sh := st.shards[m.Channel]
	switch {
	case sh == nil: // it was dropped meanwhile
	case m.Kind == "ssubscribe":
		s.subscriber.onSubscribed(&sh.line)
	case m.Kind == "sunsubscribe":
		delete(st.shards, m.Channel)
		sh.on = nil
		s.subscriber.deaf(&sh.line)
		s.cluster.ReloadState(s.subscriber.life)
		s.signal()
	}
}

// dropIdle ends subscriptions without a waiter for idleShard.
func (s *shards) dropIdle(st *nodeSubscriber) {
	s.subscriber.mu.Lock()
	var idle []string
	for channel, sh := range st.shards {
		if sh.users == 0 && time.Since(sh.left) > idleShard {
			idle = append(idle, channel)
			delete(st.shards, channel)
			delete(s.lines, sh.slot)
		}
	}
	s.subscriber.mu.Unlock()
	for _, channel := range idle {
		if st.sub.SUnsubscribe(s.subscriber.life, channel) != nil {
			return // the connection is broken, which ends all its subscriptions
		}
	}
}
