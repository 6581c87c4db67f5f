package etcdlock

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// crowdOf is a driver whose watch hears, with so many places that wait for others, all in one line.
func crowdOf(t *testing.T, others, places int) (d *Driver, l *line, wakes []<-chan struct{}) {
	t.Helper()
	d, first := placeIn(t, queued, driver.Request{TTL: time.Minute, Queue: true})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.live, d.watch.begun = true, 1
	l = first.line
	var queue []entry
	for i := range others {
		queue = append(queue, entry{key: otherKey(i), rev: int64(10 + i)})
	}
	all := []*place{first}
	for i := range places - 1 {
		c := claimtest.New(t, d, driver.Request{Resource: "a", Owner: fmt.Sprint("owner ", i), TTL: time.Minute, Queue: true})
		all = append(all, d.newPlace(c.(*claim), first.in))
	}
	for i, p := range all {
		p.exists(int64(10 + others + i))
		p.listen()
		queue = append(queue, entry{key: p.key, rev: p.rev, lease: p.in.id})
		wakes = append(wakes, p.waitFor(look{queue: slices.Clone(queue), rev: p.rev}, boottime.Now()))
		p.deaf()
	}
	return d, l, wakes
}

func otherKey(i int) string { return fmt.Sprint("leasehold/a/other", i) }

func deletedEvent(key string, rev int64) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}
}

// The end of the one ahead of all is as much work for a driver with forty times as many waiters.
func TestDeletionIsNoWorkForEachWaiter(t *testing.T) {
	const others = 50
	cost := func(waiters int) time.Duration {
		least := time.Hour
		for range 5 {
			d, _, wakes := crowdOf(t, others, waiters)
			start := time.Now()
			for i := range others {
				d.deleted([]*clientv3.Event{deletedEvent(otherKey(i), int64(10_000+i))})
			}
			least = min(least, time.Since(start))
			for i, wake := range wakes {
				if waiting.Closed(wake) != (i == 0) {
					t.Fatalf("when all others have gone, waiter %d of %d is woken: %t", i, waiters, i > 0)
				}
			}
			d.Close()
		}
		return least
	}
	few, many := cost(10), cost(400) // a claim more costs a look at the keys of all others: 1,000 take seconds
	t.Logf("%d deletions: %v for 10 waiters, %v for 400", others, few, many)
	if many > 12*few {
		t.Errorf("%d deletions took %v for 400 waiters, and %v for 10; want at most 12 times as long", others, many, few)
	}
}

// A read that another has overtaken brings back nobody who has gone, and whoever is next is woken.
func TestLineKeepsNewerNews(t *testing.T) {
	d, l, wakes := crowdOf(t, 2, 2)
	d.mu.Lock()
	defer d.mu.Unlock()
	p, before := l.places[0], slices.Clone(l.queue)
	p.listen()
	l.learn(1, boottime.Now(), look{queue: before[1:], rev: 200})
	l.hear(deletion{otherKey(1), 201})
	if !waiting.Closed(wakes[0]) {
		t.Error("the next was not woken")
	}
	if wake := p.waitFor(look{queue: before, rev: 199}, boottime.Now()); !waiting.Closed(wake) {
		t.Error("the next, which waits by an answer that came late, is not woken")
	}
	if l.rev != 200 || len(l.queue) != 2 || l.queue[0].key != p.key {
		t.Errorf("the line after an answer that came late, as of revision %d: %v", l.rev, l.queue)
	}
}

// Whoever is deleted while a read is on its way is not in the line after it; others are, whose keys were used before.
func TestLineHearsWhileItIsRead(t *testing.T) {
	d, l, wakes := crowdOf(t, 2, 2)
	d.mu.Lock()
	defer d.mu.Unlock()
	p, read := l.places[1], slices.Clone(l.queue)
	p.listen()
	l.hear(deletion{otherKey(0), 150})
	l.hear(deletion{otherKey(1), 151}) // and made again
	read[1].rev = 152
	slices.SortFunc(read, byRevision)
	p.waitFor(look{queue: read, rev: 152}, boottime.Now())
	if at := slices.IndexFunc(l.queue, func(e entry) bool { return e.key == otherKey(1) }); at != len(l.queue)-1 {
		t.Errorf("a key that was used before and after is number %d of %v", at, l.queue)
	}
	p.listen()
	l.hear(deletion{otherKey(0), 153})
	p.waitFor(look{queue: read, rev: 152}, boottime.Now())
	if l.queue[0].key == otherKey(0) || !waiting.Closed(wakes[0]) {
		t.Errorf("the line has whoever left while it was read: %v", l.queue)
	}
}

// What one watch has told is nothing to reads of the next: the cluster may be another.
func TestLineForgetsAnotherWatch(t *testing.T) {
	d, l, _ := crowdOf(t, 1, 2)
	d.mu.Lock()
	p, read := l.places[0], slices.Clone(l.queue)
	p.listen()
	l.hear(deletion{otherKey(0), 1000})
	d.mu.Unlock()
	d.watch.hearing(0)
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.ahead() >= 0 {
		t.Error("a place trusts a line of another watch")
	}
	p.listen()
	p.waitFor(look{queue: read, rev: 20}, boottime.Now())
	if n := p.ahead(); n != 1 {
		t.Errorf("%d are ahead; want 1, who is there again", n)
	}
}

// Reads that never pause keep no more than so many deletions. A read that misses one is made again.
func TestLineKeepsSoMuchAndNoMore(t *testing.T) {
	d, l, _ := crowdOf(t, 1, 2)
	d.mu.Lock()
	defer d.mu.Unlock()
	p := l.places[0]
	p.listen()
	for i := range maxHeard + 1 {
		l.hear(deletion{fmt.Sprint("leasehold/a/", i), int64(1000 + i)})
	}
	if len(l.heard) > maxHeard || d.watch.hears(p.watch) {
		t.Errorf("%d deletions are kept, and the read counts: %t", len(l.heard), d.watch.hears(p.watch))
	}
	l.hear(deletion{"leasehold/a/x", 1})
	p.calls = 1
	if p.finish(); len(l.heard) > 0 || l.reads > 0 {
		t.Errorf("%d deletions are kept for nobody, and %d reads", len(l.heard), l.reads)
	}
}

// Reads that teach the line nothing, as one that fails and that of a claim that does not wait, spare nobody a read for long.
func TestLineIsReadAgain(t *testing.T) {
	for what, taught := range map[string]bool{"a claim that does not wait": false, "a read that fails": false, "a read that counts": true} {
		d, l, _ := crowdOf(t, 3, 3)
		d.mu.Lock()
		clock := new(boottime.Clock)
		d.clock = clock
		queue, p, reader := slices.Clone(l.queue), l.places[2], l.places[1]
		if what == "a claim that does not wait" {
			d.mu.Unlock()
			c := claimtest.New(t, d, driver.Request{Resource: "a", Owner: "tries", TTL: time.Minute})
			d.mu.Lock()
			reader = d.newPlace(c.(*claim), p.in)
		}
		l.from, l.asked = clock.Now(), clock.Now()
		busy := p.stays()
		if busy == nil {
			t.Fatal("it is to read what has just been read")
		}
		for range 10 {
			clock.Sleep(busy.Retry / 2)
			started := clock.Now()
			reader.listen()
			if taught {
				reader.waitFor(look{queue: slices.Clone(queue), rev: l.rev}, started)
			}
			reader.deaf()
		}
		if stays := p.stays() != nil; stays != taught {
			t.Errorf("%s: it stays unread: %t; want %t", what, stays, taught)
		}
		d.mu.Unlock()
		d.Close()
	}
}
