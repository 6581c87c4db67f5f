package etcdlock

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/waiting"
)

// A claim with a weight is exclusive for processes that know no weights. When they write its value,
// which they know in part, its weight stays.
func TestWeightStandsInTheKey(t *testing.T) {
	d, _ := placeIn(t, idle, driver.Request{TTL: time.Minute})
	for _, c := range []struct {
		mode           driver.Mode
		weight, weighs int
		shared         bool // for processes that know no weights
	}{
		{driver.Shared, 0, 1, true}, {driver.Shared, 1, 1, true}, {driver.Shared, 3, 3, false},
		{driver.Shared, driver.MaxWeight, driver.MaxWeight, false}, {driver.Exclusive, 3, 0, false},
	} {
		req := driver.Request{Resource: "a", Owner: "w2", Mode: c.mode, Weight: c.weight, TTL: time.Minute}
		one := claimtest.New(t, d, req)
		s := newSession(time.Minute, boottime.Now())
		for range 2 { // the second key in the session
			d.mu.Lock()
			p := d.newPlace(one.(*claim), s)
			d.mu.Unlock()
			var former struct {
				Owner  string `json:"owner,omitempty"`
				Shared bool   `json:"shared,omitempty"`
			}
			if err := json.Unmarshal([]byte(p.claim.value), &former); err != nil || former.Shared != c.shared {
				t.Errorf("a weight of %d: the value says shared: %t, %v; want %t", c.weight, former.Shared, err, c.shared)
			}
			rewritten, _ := json.Marshal(former)
			for _, value := range [][]byte{[]byte(p.claim.value), rewritten} {
				if e := newEntry(&mvccpb.KeyValue{Key: []byte(p.key), Value: value}); e.mode() != c.mode || e.uses() != c.weighs {
					t.Errorf("%s = %s: mode %d and weight %d; want %d and %d", p.key, value, e.mode(), e.uses(), c.mode, c.weighs)
				}
			}
		}
	}
	for _, key := range []string{"a/1fw", "a/1fw0", "a/1fw1", "a/1fw-3", "a/1fw03", "a/1fw+3", "a/1fw9999999999", "a/1f-3"} {
		if e := newEntry(&mvccpb.KeyValue{Key: []byte(key), Value: []byte(`{"owner":"a"}`)}); e.mode() != driver.Exclusive {
			t.Errorf("%s has a weight of %d", key, e.weight)
		}
	}
	if e := newEntry(&mvccpb.KeyValue{Key: []byte("a/1fw3")}); e.mode() != driver.Exclusive {
		t.Error("another client's key has a weight")
	}
}

// The keys of limits are those of nothing else.
func TestKeysOfLimits(t *testing.T) {
	d, _ := placeIn(t, idle, driver.Request{TTL: time.Minute})
	for _, name := range []string{"a", "a/b", "/", "//a", "%"} {
		key := d.limitDir(d.dir(name)) + "a"
		if dir, ok := d.limitedBy(key); !ok || dir != d.dir(name) {
			t.Errorf("%q limits %q, %t; want %q", key, dir, ok, d.dir(name))
		}
		if of, ok := d.nameOf(key); ok {
			t.Errorf("%q is taken for a key of %q", key, of)
		}
		for _, other := range []string{d.dir(name) + "1f", d.tombstone(d.dir(name)+"1f", 31), d.markDir(d.dir(name), "/a") + "1f"} {
			if dir, ok := d.limitedBy(other); ok {
				t.Errorf("%q is taken for the limit of %q", other, dir)
			}
		}
	}
}

func TestLimitThatIsDamaged(t *testing.T) {
	for value, want := range map[string]limit{
		`{}`: {}, `{"limit":3}`: {Most: 3}, `{"limit":3,"after":4}`: {Most: 3, After: 4},
		`{"limit":3,"after":9}`: {Most: 3}, // of another cluster
	} {
		if l, err := newLimit(&mvccpb.KeyValue{Value: []byte(value), ModRevision: 9}); err != nil || l.Most != want.Most || l.After != want.After {
			t.Errorf("%s: %+v, %v; want %+v", value, l, err, want)
		}
	}
	for _, value := range []string{"", "3", `{"limit":-1}`, `{"limit":2147483648}`, `{"limit":"3"}`} {
		if l, err := newLimit(&mvccpb.KeyValue{Value: []byte(value), ModRevision: 9}); err == nil || !l.unknown {
			t.Errorf("%s: %+v, %v; want ErrCorrupt", value, l, err)
		}
	}
}

// Whatever an operator sets, who holds goes on holding until it leaves, and whoever comes to hold fits into
// the limit that is set then.
func TestLimitsEndNobody(t *testing.T) {
	for range 20_000 {
		var all []entry
		var set limit
		held := make(map[int64]bool)
		for rev := int64(1); rev <= 25; rev++ {
			switch before := set; rand.N(4) {
			case 0:
				if len(all) > 0 {
					i := rand.N(len(all))
					delete(held, all[i].rev)
					all = slices.Delete(all, i, i+1)
				}
			case 1:
				most := rand.N(5)
				set = limit{Most: most, After: before.After, mod: rev}
				if holds := before.holders(all); most > 0 && (before.Most == 0 || most < before.Most) && len(holds) > 0 {
					set.After = max(set.After, holds[len(holds)-1].rev)
				}
			default:
				e := entry{rev: rev}
				if rand.N(5) > 0 {
					e.Shared, e.Limit = true, rand.N(2)*4
					e.weight = rand.N(4)
				}
				if !e.claim().TooHeavy() {
					all = append(all, e)
				}
			}
			used := 0
			holds := set.holders(all)
			for _, e := range holds {
				used += e.uses()
				if new := !held[e.rev]; new && e.mode() == driver.Shared && set.Most > 0 && used > set.Most {
					t.Fatalf("%+v is let in: %d of %+v are used by %+v", e, used, set, all)
				}
			}
			if was := len(held); len(holds) < was {
				t.Fatalf("%d hold by %+v, %d did: %+v", len(holds), set, was, all)
			}
			for _, e := range holds {
				held[e.rev] = true
			}
		}
	}
}

// What a read has told counts no more when the watch has told of another limit, unless it was read later. Those who wait
// for room below the former one are not let in by what is deleted after that.
func TestLineForgetsWhatWasReadBesideAnotherLimit(t *testing.T) {
	d, p := placeIn(t, queued, driver.Request{TTL: time.Minute, Queue: true, Mode: driver.Shared})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life.End() // it is not read again: there is no server
	d.watch.live, d.watch.begun = true, 1
	l := p.line
	sharing := func(rev int64) entry {
		return entry{content: content{Owner: "b", Shared: true}, key: otherKey(int(rev)), rev: rev}
	}
	own := entry{content: decode([]byte(p.claim.value)), key: p.key, rev: p.rev, lease: p.in.id}
	read := func(most int, rev int64) look {
		return look{queue: []entry{sharing(2), sharing(3), own}, limit: limit{Most: most, key: "x", mod: 1}, rev: rev}
	}
	next := func() bool { next, _ := p.isNext(time.Minute, boottime.Now()); return next }
	if l.learn(1, boottime.Now(), read(2, 10)); next() {
		t.Fatal("it is next behind two of two")
	}
	p.listen()
	d.mu.Unlock()
	d.deleted([]*clientv3.Event{deletedEvent(strings.Replace(d.dir("a"), "a/", "///a/", 1)+"a", 11), deletedEvent(otherKey(2), 12)})
	d.mu.Lock()
	if next() {
		t.Error("it is next by what was read beside another limit")
	}
	if l.learn(1, boottime.Now(), read(2, 10)); next() {
		t.Error("it is next by what was read before the limit was another")
	}
	if l.learn(1, boottime.Now(), read(1, 11)); next() {
		t.Error("it is next behind one of one")
	}
	if l.learn(1, boottime.Now(), read(2, 11)); !next() {
		t.Error("it is not next behind one of two")
	}
	l.watch = 0
	unread := read(0, 12)
	unread.limit = limit{unknown: true}
	unread.rev = 13
	wake := p.waitFor(read(1, 12), boottime.Now())
	if p.stays() == nil || waiting.Closed(wake) {
		t.Error("it is not to wait behind one of one")
	}
	l.watch = 0
	if l.learn(1, boottime.Now(), unread); next() { // by an exclusive claim, which needs none
		t.Error("it is next beside a limit that is not known")
	}
	if p.stays() != nil || !waiting.Closed(wake) {
		t.Error("it does not read the limit that an exclusive claim did not")
	}
	if l.limits(d.dir("a"), 12); l.watch != 0 {
		t.Error("what was read without the limit counts after that has changed")
	}
}

// A waiter that has become too heavy is woken to learn of it, and does not stay unread.
func TestWaiterThatHasBecomeTooHeavyIsWoken(t *testing.T) {
	d, p := placeIn(t, queued, driver.Request{TTL: time.Minute, Queue: true, Mode: driver.Shared, Weight: 3})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.live, d.watch.begun = true, 1
	holder := entry{content: content{Owner: "b", Shared: true}, key: otherKey(2), rev: 2}
	own := entry{content: decode([]byte(p.claim.value)), weight: 3, key: p.key, rev: p.rev, lease: p.in.id}
	now := boottime.Now()
	p.listen()
	wake := p.waitFor(look{queue: []entry{holder, own}, limit: limit{Most: 3}, rev: 10}, now)
	if p.stays() == nil || waiting.Closed(wake) {
		t.Error("it is not to wait behind one of three")
	}
	p.line.learn(1, now, look{queue: []entry{holder, own}, limit: limit{Most: 2}, rev: 11})
	if p.stays() != nil || !waiting.Closed(wake) {
		t.Error("it is not woken")
	}
	wake = p.waitFor(look{queue: []entry{holder, own}, limit: limit{Most: 2, Was: &limit{Most: 3}, mod: 12}, rev: 12}, now)
	if p.stays() == nil || waiting.Closed(wake) {
		t.Error("it is woken before it is known whether it held")
	}
}
