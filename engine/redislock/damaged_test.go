package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func companion(kind, name string) string { return "lock:\x1f" + kind + "{lock:" + name + "}" }

// Companions that somebody has damaged spoil their own resource at most: its error names it,
// what can be told of it is shown, and the others are as ever.
func TestRedisListWithDamagedCompanions(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	l := redisLocker(t, r, nil, leasehold.Options{})
	names := []string{"fine", "q", "d", "s", "f", "text", "cut"}
	leases := make(map[string]*leasehold.Lease)
	for _, name := range names {
		opts := []leasehold.Option{}
		if name == "s" || name == "d" {
			opts = append(opts, leasehold.Shared())
		}
		lease, err := l.Acquire(t.Context(), name, opts...)
		if err != nil {
			t.Fatal(err)
		}
		leases[name] = lease
	}
	for _, kind := range names[1:5] {
		key := companion(kind, kind)
		r.Must(t, "DEL", key)
		r.Must(t, "LPUSH", key, "x")
	}
	r.Must(t, "SET", companion("f", "text"), "\xcf")
	whole := r.Must(t, "GET", companion("f", "cut"))
	r.Must(t, "SET", companion("f", "cut"), whole[:29+len(leases["cut"].Owner())]) // an owner without channel and note
	r.Must(t, "LPUSH", "lock:mine", "somebody's data")
	page, err := l.Page(t.Context(), leasehold.PageOptions{})
	if !errors.Is(err, driver.ErrCorrupt) {
		t.Fatalf("List: %v; want ErrCorrupt", err)
	}
	got := make(map[string]int)
	for _, st := range page.States {
		got[st.Resource] = len(st.Holders)
	}
	for _, name := range names {
		if name != "s" && got[name] != 1 { // nothing tells who shares it
			t.Errorf("%q: %d holders are shown, want 1", name, got[name])
		}
		if named := strings.Contains(err.Error(), fmt.Sprintf("of %q", name)); named != (name != "fine") {
			t.Errorf("%q is named as damaged: %v, by %v", name, named, err)
		}
		_, err := l.Inspect(t.Context(), name)
		if errors.Is(err, redislock.ErrDamaged) != (name != "fine") {
			t.Errorf("Inspect of %q: %v", name, err)
		}
	}
	if _, shown := got["mine"]; shown || strings.Contains(err.Error(), `"mine"`) {
		t.Errorf("what is no lock is listed: %v, %v", page.States, err)
	}
	if _, err := l.Inspect(t.Context(), "mine"); !errors.Is(err, redislock.ErrWrongType) {
		t.Errorf("Inspect of what is no lock: %v", err)
	}
	for _, err := range l.Observe(t.Context(), "cut", time.Hour) {
		if !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("Observe: %v", err)
		}
		break
	}
	for _, name := range []string{"q", "f", "text", "cut"} { // exclusive ones go with their lock key
		_ = leases[name].Release(t.Context()) // unknown, where it could not look who is next
		if n := r.Must(t, "EXISTS", "lock:"+name); n != "0" {
			t.Errorf("%q is still held after Release", name)
		}
	}
}

// A place that cannot be read is nobody's: who comes next gets the lock.
func TestRedisDamagedPlaceBlocksNobody(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	l := redisLocker(t, r, nil, leasehold.Options{})
	for what, record := range map[string]string{"cut": "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xa1x", "text": "\xa1y\xa1x", "none": "", "alien": "\xc1"} {
		r.Must(t, "ZADD", companion("q", what), "1", "stranger")
		r.Must(t, "HSET", companion("d", what), "wstranger", record)
		if _, err := l.Inspect(t.Context(), what); !errors.Is(err, redislock.ErrDamaged) {
			t.Errorf("%s: Inspect: %v", what, err)
		}
		lease, err := l.TryAcquire(t.Context(), what)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("%s: Release: %v", what, err)
		}
		if st, err := l.Inspect(t.Context(), what); err != nil || len(st.Waiters) > 0 {
			t.Errorf("%s: afterwards: %+v, %v", what, st, err)
		}
	}
}

// Whatever is stored beside a lock, no call panics, each has one of the outcomes that the
// contract names, and the neighbour is not harmed.
func FuzzRedisDamagedCompanions(f *testing.F) {
	r := servers.StartRedis(f)
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	f.Cleanup(func() { client.Close() })
	d, err := redislock.New(client, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.Close() })
	ctx := context.Background()
	request := func(name, owner string, mode driver.Mode) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: name, Owner: owner, Mode: mode, TTL: time.Minute, Queue: true})
		if err != nil {
			f.Fatal(err)
		}
		return c
	}
	if _, err := request("neighbour", "other", driver.Exclusive).Try(ctx); err != nil {
		f.Fatal(err)
	}
	far := "\xcf\x00\x07\xff\xff\xff\xff\xff\xff"
	for _, record := range []string{
		"", "x", "\xc1", far, far + "\xa1x", "\xc0\xc0\xc0", "\xa1a\xa1b\xa1c",
		far + "\xa1x\x00\xa0" + far + "\xa0" + far + "\xa11\x00\xa0\xa10",      // a waiter
		far + "\xa1x\x00\xa0" + far + "\xa0" + far + "\xa11\x00\xa0\xa10\xa1n", // of a later version
		"\x01\x01\x00\xa0\xa0", "\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00\x01\x00\xa0\xa0", // a sharer; one of infinity
		"\x93\x01\x02\x03", "\x81\xa1a\xa1b", strings.Repeat("\x91", 40),
		strings.Repeat("\x00", 24) + "\xa3own\xa0\xa0", strings.Repeat("\xff", 24) + "\xa3own\xa0\xa0",
		strings.Repeat("\x00", 24) + "\xa3own", strings.Repeat("\x00", 24) + "\xa3own\xa0\xa0\xa0",
	} {
		for shape := range byte(4) {
			f.Add([]byte(record), shape, 1.0)
		}
	}
	f.Add([]byte("x"), byte(1), 1e300)
	f.Fuzz(func(t *testing.T, record []byte, shape byte, score float64) {
		if score != score {
			score = 0
		}
		const name = "damaged"
		keys := client.Keys(ctx, "*"+name+"*").Val()
		if len(keys) > 0 {
			client.Del(ctx, keys...)
		}
		client.Set(ctx, "lock:"+name, []string{"own", "\x1fshared", "\x1flinger", ""}[shape%4], time.Minute)
		client.Set(ctx, companion("f", name), record, time.Minute)
		client.ZAdd(ctx, companion("q", name), redis.Z{Score: score, Member: "stranger"}, redis.Z{Score: score, Member: "me"})
		client.HSet(ctx, companion("d", name), "wstranger", record, "wme", record, "sown", record, "s"+string(record), record)
		client.ZAdd(ctx, companion("s", name), redis.Z{Score: score, Member: "own"}, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: string(record)})
		client.ZAdd(ctx, companion("l", name), redis.Z{Score: score, Member: "own"})
		allowed := func(what string, err error) {
			if err != nil && !errors.Is(err, driver.ErrCorrupt) && !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrLost) && !strings.Contains(err.Error(), "FENCE is exhausted") {
				t.Errorf("%s: %v", what, err)
			}
		}
		states, _, err := d.List(ctx, "", "", 100)
		allowed("List", err)
		healthy := 0
		for _, st := range states {
			if st.Resource == "neighbour" && len(st.Holders) == 1 && st.Holders[0].Owner.Reveal() == "other" {
				healthy++
			}
			for _, h := range st.Holders {
				if h.Held < 0 || h.Left < 0 {
					t.Errorf("held for %v, left %v", h.Held, h.Left)
				}
			}
		}
		if healthy != 1 {
			t.Errorf("the neighbour is not shown: %+v", states)
		}
		own, me := request(name, "own", driver.Mode(shape/4%2)), request(name, "me", driver.Mode(shape/8%2))
		_, err = own.Renew(ctx, time.Minute)
		allowed("Renew", err)
		allowed("Note", own.Note(ctx, "note"))
		_, err = me.Try(ctx)
		allowed("Try", err)
		_, err = own.Try(ctx)
		allowed("Try by the holder", err)
		allowed("Evict", d.Evict(ctx, name, "own", "fuzz"))
		allowed("Release", own.Release(ctx, driver.End{}))
		allowed("Release", me.Release(ctx, driver.End{}))
	})
}

// A hold that lingers keeps its history. If that is lost all the same, nobody knows since when it is
// held.
func TestHoldThatLingersKeepsItsHistory(t *testing.T) {
	t.Parallel()
	const linger = 48 * time.Hour
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	d := redisDriverOf(t, client, nil)
	c := lateClaim(t, d, "n", "owner", time.Minute)
	mustTry(t, c)
	if err := c.Release(t.Context(), driver.End{Linger: linger}); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), companion("f", "n")).Val(); left < linger-time.Minute {
		t.Errorf("the history ends in %v, the hold in %v", left, linger)
	}
	if err := d.RaiseFence(t.Context(), "n", 1); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), companion("f", "n")).Val(); left < linger-time.Minute {
		t.Errorf("after RaiseFence the history ends in %v, the hold in %v", left, linger)
	}
	r.Must(t, "DEL", companion("f", "n"))
	st, err := d.Inspect(t.Context(), "n")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Held != 0 {
		t.Errorf("Inspect without the history: %+v, %v; want one holder, held for 0", st.Holders, err)
	}
	_, err = lateClaim(t, d, "n", "other", time.Minute).Try(t.Context())
	if busy, ok := errors.AsType[*driver.Busy](err); !ok || busy.Holder.Held != 0 {
		t.Errorf("Try without the history: %v; want a refusal by a holder, held for 0", err)
	}
	forever := redisDriverOf(t, client, &redislock.Options{RequireFenceHistory: true})
	if err := forever.RaiseFence(t.Context(), "kept", 1); err != nil {
		t.Fatal(err)
	}
	c = lateClaim(t, forever, "kept", "owner", time.Minute)
	mustTry(t, c)
	if err := c.Release(t.Context(), driver.End{Linger: linger}); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), companion("f", "kept")).Val(); left != -1 {
		t.Errorf("a history that is kept forever ends in %v", left)
	}
}
