package etcdlock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasehold-go/leasehold/driver"
)

func TestNewRefuses(t *testing.T) {
	client := clientv3.NewCtxClient(t.Context())
	if _, err := New(nil, nil); err == nil {
		t.Error("New without a client: no error")
	}
	for _, o := range []Options{{Prefix: "a/"}, {Prefix: "a\n"}, {Prefix: "a", NoPrefix: true}} {
		if _, err := New(client, &o); err == nil {
			t.Errorf("New with %+v: no error", o)
		}
	}
	for o, want := range map[Options]string{{}: "leasehold/a%2Fb/", {Prefix: "/x/y"}: "/x/y/a%2Fb/", {NoPrefix: true}: "a%2Fb/"} {
		d, err := New(client, &o)
		if err != nil {
			t.Errorf("New with %+v: %v", o, err)
			continue
		}
		if got := d.dir("a/b"); got != want {
			t.Errorf("dir with %+v is %q, want %q", o, got, want)
		}
		if name, ok := d.nameOf(want + "1f-1"); !ok || name != "a/b" {
			t.Errorf("nameOf with %+v is %q, %v", o, name, ok)
		}
		if name, ok := d.nameOf(d.tombstone(want+"1f-1", 31)); ok {
			t.Errorf("the tombstone is taken for a key of %q", name)
		}
		d.Close()
	}
}

// Names stay distinct, and what begins alike still does.
func FuzzEscape(f *testing.F) {
	f.Add("a/b", "a%2Fb")
	f.Add("a%", "a%25")
	f.Add("", "/")
	f.Fuzz(func(t *testing.T, a, b string) {
		ea, eb := escape(a), escape(b)
		if unescape(ea) != a || strings.Contains(ea, "/") {
			t.Errorf("%q is escaped as %q", a, ea)
		}
		if (a == b) != (ea == eb) || strings.HasPrefix(a, b) != strings.HasPrefix(ea, eb) {
			t.Errorf("%q and %q are escaped as %q and %q", a, b, ea, eb)
		}
	})
}

// Anybody can put keys and values: each below a resource is a claim of somebody.
func FuzzEntries(f *testing.F) {
	for _, v := range []string{"", "{}", "null", "[]", `{"owner":"a","shared":true,"limit":-1}`, `{"owner":1}`, `{"shared":true,"limit":1}`, "\xff"} {
		f.Add("leasehold/a/1f", v)
		f.Add("leasehold/a/", v)
	}
	d, err := New(clientv3.NewCtxClient(f.Context()), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		if !strings.HasPrefix(key, d.root) {
			return
		}
		kv := func(rev int64) *mvccpb.KeyValue {
			return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: rev}
		}
		d.nameOf(key)
		if !strings.HasPrefix(key, d.dir("a")) {
			return
		}
		queue := entries(d.dir("a"), []*mvccpb.KeyValue{kv(2), kv(1)})
		for _, e := range queue {
			if e.name() == "" && key != d.dir("a") {
				t.Errorf("nobody is behind %q", key)
			}
		}
		if n := len(limit{}.holders(queue)); len(queue) > 0 && n < 1 {
			t.Errorf("none of %d holds", len(queue))
		}
	})
}

func TestHoldersAreThoseTheirContentsAllow(t *testing.T) {
	writer, reader := entry{}, entry{content: content{Shared: true}}
	limited := entry{content: content{Shared: true, Limit: 2}}
	if n := len(limit{}.holders([]entry{limited, reader, reader, writer})); n != 2 {
		t.Errorf("%d hold, want 2", n)
	}
	if n := len(limit{}.holders([]entry{writer, reader})); n != 1 {
		t.Errorf("%d hold, want 1", n)
	}
}

func TestBatchTakesWhatMayGoTogether(t *testing.T) {
	d, _ := placeIn(t, idle, driver.Request{TTL: time.Minute})
	const names, ops, all = 40, 5, 120
	writes, batches := 0, 0
	for i := range all {
		w := &write{dir: fmt.Sprint(i % names), cmps: make([]clientv3.Cmp, i%2*ops), then: make([]clientv3.Op, ops-i%2)}
		b, leads := d.join(w)
		if leads {
			batches++
			writes = 0
		}
		if writes++; len(b.dirs) != writes {
			t.Errorf("a batch of %d names has %d writes", len(b.dirs), writes)
		}
		if len(b.cmps) > maxOps || len(b.ops) > maxOps {
			t.Errorf("a batch of %d comparisons and %d operations", len(b.cmps), len(b.ops))
		}
	}
	if batches < all/names || batches > all/10 {
		t.Errorf("%d writes go in %d batches", all, batches)
	}
}

func TestWarnOf(t *testing.T) {
	for version, warns := range map[string]bool{
		"3.3.27": true, "3.4.23": true, "3.4.42": false, "3.5.27": true, "3.5.28": false, "3.6.8": true, "3.6.9": false,
		"3.7.3": false, "3.6.0-rc.1": true, "4.0.0": false, "": false, "3.x": false,
	} {
		if got := warnOf(version); (got != "") != warns {
			t.Errorf("warnOf(%q) = %q", version, got)
		}
	}
}
