package redislock_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The first and the last sharer of what nobody else wants are served by fewer commands. They leave
// the same as those that all others are served by.
func TestFirstSharerLeavesWhatOthersDo(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	open := func(o redislock.Options) *redislock.Driver {
		d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, &o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	short, whole := open(redislock.Options{}), open(redislock.Options{Rest: time.Millisecond}) // whose rests the short way does not know
	// follows is how often the lock key followed the sharers, which the short way need not do.
	follows := func() bool {
		info, err := client.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		client.ConfigResetStat(t.Context())
		return strings.Contains(info, "cmdstat_zrevrange:")
	}
	for i, req := range []driver.Request{
		{},
		{Limit: 7},
		{Weight: 3},
		{Limit: 7, Weight: 3},
		{Limit: 7, Queue: true, Note: "note"},
		{Wanted: func() {}},
		{Lost: func(error) {}},
	} {
		req.Owner, req.Mode, req.TTL = "owner", driver.Shared, time.Hour
		var left [2]map[string]string
		for w, d := range []*redislock.Driver{short, whole} {
			client.FlushAll(t.Context())
			follows()
			req.Resource = fmt.Sprint("n", i)
			c, err := d.Claim(req)
			if err != nil {
				t.Fatal(err)
			}
			claimtest.Granted(t, c)
			if follows() != (w == 1) {
				t.Errorf("%+v: served by the wrong way", req)
			}
			left[w] = everything(t, client)
			claimtest.Released(t, c)
			after := everything(t, client)
			maps.DeleteFunc(after, func(key, _ string) bool { return strings.Contains(key, "\x1ff") || strings.Contains(key, "\x1fr") })
			if w == 0 && len(after) > 0 {
				t.Errorf("%+v: its release leaves %q", req, after)
			}
		}
		if !maps.Equal(left[0], left[1]) {
			t.Errorf("%+v leaves\n%q\nand the others\n%q", req, left[0], left[1])
		}
	}
}

// everything tells of each key what does not depend on when it was written.
func everything(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	ctx, all := t.Context(), make(map[string]string)
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		lives := client.PTTL(ctx, key).Val()
		text := fmt.Sprintf("%.0f h ", math.Ceil(lives.Hours()-1./60))
		switch client.Type(ctx, key).Val() {
		case "string":
			if text += "string"; !strings.Contains(key, "\x1f") {
				text = text + " " + client.Get(ctx, key).Val()
			}
		case "hash":
			text += fmt.Sprint(slices.Sorted(maps.Keys(client.HGetAll(ctx, key).Val())))
		case "zset":
			for _, z := range client.ZRangeWithScores(ctx, key, 0, -1).Val() {
				if z.Score > 1e9 { // an instant
					z.Score = 0
				}
				text += fmt.Sprint(z)
			}
		}
		all[key] = text
	}
	return all
}
