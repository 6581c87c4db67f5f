package redislock

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

// reply is a reply of the server: lists, whole numbers and texts, as JSON has them.
func fuzzedReply(text string) []any {
	var all []any
	if json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	var whole func([]any)
	whole = func(list []any) {
		for i, v := range list {
			switch v := v.(type) {
			case float64:
				list[i] = int64(v)
			case []any:
				whole(v)
			}
		}
	}
	whole(all)
	return all
}

// What inspect.lua says is a State, or damaged.
func FuzzStateOf(f *testing.F) {
	for _, s := range []string{
		`[1,[],[],[]]`, `[7,["a","x",0,3,1,2,"n","b","s",2,4,1,2,"n"],["b","s",1,"n"],[]]`, `[7,["a","x",3],["b"],["a holder"]]`, `[null,null,null,null]`,
		`["",{},[[]],[1]]`, `[-1,["a","x",-1,-3,-1,1e18,null],[],[]]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		st, err := stateOf("name", fuzzedReply(reply))
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%v; want ErrCorrupt", err)
		}
		for _, h := range st.Holders {
			if h.Held < 0 || h.Left < 0 {
				t.Errorf("held for %v, left %v", h.Held, h.Left)
			}
		}
	})
}

// A refusal is one, whatever acquire.lua says of the holder.
func FuzzRefusal(f *testing.F) {
	for _, s := range []string{`[0,1,0,100,"a","x",5,10,"n"]`, `[0,1,1,-1,null,"s",null,null,0]`, `[0,0,0,0]`, `[0,"","",1e18]`, `[0,1,1]`, `[]`} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, reply string, queue bool) {
		values := fuzzedReply(reply)
		busy, err := (&claim{req: driver.Request{Queue: queue}}).refusal(values)
		if err != nil {
			if len(values) >= 4 || !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("%v: %v", values, err)
			}
			return
		}
		if busy.Retry < 0 || busy.Holder.Left < 0 || busy.Holder.Held < 0 {
			t.Errorf("%+v", busy)
		}
	})
}

// Keys are read back as the names that made them, and others as none.
func FuzzNameOf(f *testing.F) {
	for _, k := range []string{"lock:a", "lock:\x1fq{lock:a}", "lock:\x1fq{4f}lock:a}b", "lock:\x1fq{", "lock:\x1fq{lock:a", "lock:\x1f", "other", "lock:"} {
		f.Add(k)
	}
	d := &Driver{o: Options{Prefix: DefaultPrefix}}
	f.Fuzz(func(t *testing.T, key string) {
		name, ok := d.nameOf(key)
		if ok && (driver.CheckName(name) != nil || !strings.HasPrefix(key, DefaultPrefix)) {
			t.Errorf("%q is of the name %q", key, name)
		}
		if driver.CheckName(key) != nil {
			return
		}
		for _, made := range []string{d.keysOf(key).lock, d.keysOf(key).companion(kindQueue)} {
			if name, ok := d.nameOf(made); !ok || name != key {
				t.Errorf("%q of %q is read as %q, %v", made, key, name, ok)
			}
		}
	})
}

// Anybody can publish on a driver's channel, and INFO is as the server wants it.
func FuzzMessages(f *testing.F) {
	for _, m := range []string{"w3:abc", "e5:a:b\x1fcwhy", "g1:a1 7 1000 1000", "g1:a1 7 -1 9223372036854775807", "g1:a1 7 1000 1000 1", "r1:a7", "r1:a-1", "w-1:a", "w99999999999999999999:", ":"} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, message string) {
		d, err := New(noServer(), nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &claim{d: d, req: driver.Request{Resource: "a", Owner: "a", Queue: true, Wanted: func() {}}, keys: d.keysOf("a")}
		d.subscriber.claims["a"] = &listener{claim: c, wants: c, waiting: waiting{wake: make(chan struct{}), number: 1, granted: make(chan driver.Grant, 1)}}
		d.subscriber.take(message)
		parseInfo(message)
		_, _ = onceReply("key", 1, fuzzedReply(message))
	})
}
