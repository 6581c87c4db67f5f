package etcdlock

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

// putEvent is of a key of the resource "a" with that value.
func putEvent(key, value string, create, mod int64) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{
		Key: []byte("leasehold/" + key), Value: []byte(value), CreateRevision: create, ModRevision: mod,
	}}
}

// What the watch of changes tells makes a holder wanted if it is another owner's place behind its own.
func TestWhoIsWantedByAPut(t *testing.T) {
	for _, c := range []struct {
		what   string
		req    driver.Request
		in     phase
		event  *clientv3.Event
		wanted bool
		gone   bool // before it is granted
	}{
		{"another behind", driver.Request{}, held, putEvent("a/1", `{"owner":"b"}`, 6, 6), true, false},
		{"another client behind", driver.Request{}, held, putEvent("a/1", "", 6, 6), true, false},
		{"a reader behind", driver.Request{}, held, putEvent("a/1", `{"owner":"b","shared":true}`, 6, 6), true, false},
		{"a writer behind a reader", driver.Request{Mode: driver.Shared}, held, putEvent("a/1", `{"owner":"b"}`, 6, 6), true, false},
		{"its own key", driver.Request{}, held, putEvent("a/1", `{"owner":"b"}`, 5, 5), false, false},
		{"another key of its owner", driver.Request{}, held, putEvent("a/1", `{"owner":"owner"}`, 6, 6), false, false},
		{"a key that has changed", driver.Request{}, held, putEvent("a/1", `{"owner":"b"}`, 6, 7), false, false},
		{"another resource", driver.Request{}, held, putEvent("b/1", `{"owner":"b"}`, 6, 6), false, false},
		{"a name below", driver.Request{}, held, putEvent("a/b/1", `{"owner":"b"}`, 6, 6), false, false},
		{"while it waits", driver.Request{}, queued, putEvent("a/1", `{"owner":"b"}`, 6, 6), false, false},
		{"while it waits, for a moment", driver.Request{}, queued, putEvent("a/1", `{"owner":"b"}`, 6, 6), false, true},
		{"after its end", driver.Request{}, leaving, putEvent("a/1", `{"owner":"b"}`, 6, 6), false, false},
	} {
		told := make(chan struct{}, 10)
		c.req.TTL, c.req.Wanted = time.Minute, func() { told <- struct{}{} }
		d, p := placeHearing(t, c.in, c.req)
		d.changed([]*clientv3.Event{c.event})
		d.life.Wait()
		if got := len(told) > 0; got != c.wanted {
			t.Errorf("%s: wanted %t; want %t", c.what, got, c.wanted)
		}
		if c.in != queued {
			continue
		}
		if c.gone {
			d.changed([]*clientv3.Event{deletedEvent("leasehold/a/1", 7)})
		}
		d.mu.Lock()
		p.on(yes, nil)
		d.mu.Unlock()
		d.life.Wait()
		if granted := len(told) > 0; granted == c.gone {
			t.Errorf("%s: it is wanted when it is granted: %t", c.what, granted)
		}
	}
}

// placeHearing is placeIn of a driver whose watch of changes has been live for long.
func placeHearing(t *testing.T, in phase, req driver.Request) (*Driver, *place) {
	t.Helper()
	d, p := placeIn(t, queued, driver.Request{TTL: req.TTL})
	d.mu.Lock()
	defer d.mu.Unlock()
	p.claim.req.Mode, p.claim.req.Wanted = req.Mode, req.Wanted // no watch is started
	d.changes.live, d.changes.from = true, 1
	if in == held {
		p.on(yes, nil)
	}
	if in == leaving {
		p.on(release, errReleased)
	}
	return d, p
}

// Many places that come while the holder is about to be told lead to one call.
func TestOneCallStandsForMany(t *testing.T) {
	calls := 0
	d, p := placeHearing(t, held, driver.Request{TTL: time.Minute, Wanted: func() { calls++ }})
	d.mu.Lock()
	for range 100 {
		p.recall()
	}
	d.mu.Unlock()
	d.life.Wait()
	if calls != 1 {
		t.Errorf("%d calls; want 1", calls)
	}
	d.mu.Lock()
	p.recall()
	d.mu.Unlock()
	d.life.Wait()
	if calls != 2 {
		t.Errorf("%d calls with one after the first; want 2", calls)
	}
}

// A call that has not begun when Release does, or when the lease is lost, is not made.
func TestNoCallAfterTheEnd(t *testing.T) {
	for what, end := range map[string]func(p *place){
		"released": func(p *place) { p.claim.hushed = true },
		"lost":     func(p *place) { p.on(lost, errDeleted) },
	} {
		calls := 0
		d, p := placeHearing(t, held, driver.Request{TTL: time.Minute, Wanted: func() { calls++ }})
		d.mu.Lock()
		p.recall()
		end(p)
		p.recall()
		d.mu.Unlock()
		d.life.Wait()
		if calls > 0 {
			t.Errorf("%d calls of a lease that is %s", calls, what)
		}
	}
	_, p := placeHearing(t, held, driver.Request{TTL: time.Minute, Wanted: func() {}})
	if p.claim.hush(); p.asks() {
		t.Error("a claim asks while it is released")
	}
}

// What came may have gone if the watch of changes is behind that of deletions: it is read.
func TestStaleChangesAreRead(t *testing.T) {
	for _, late := range []bool{false, true} {
		calls := 0
		d, p := placeHearing(t, queued, driver.Request{TTL: time.Minute, Wanted: func() { calls++ }})
		d.changed([]*clientv3.Event{putEvent("a/1", "", 6, 6), putEvent("b/1", "", 8, 8)})
		rev := int64(8)
		if late {
			rev = 9
		}
		d.deleted([]*clientv3.Event{deletedEvent("leasehold/a/0", rev)})
		d.mu.Lock()
		p.looks = true // and none begins: there is no server
		p.on(yes, nil)
		d.mu.Unlock()
		d.life.Wait()
		if (calls == 0) != late {
			t.Errorf("%d calls when the watch is behind: %t", calls, late)
		}
	}
}
