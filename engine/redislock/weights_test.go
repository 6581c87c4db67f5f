package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A program that knows no weights counts heads, and compares them with the least limit. So that is 1
// as long as somebody weighs more, and nothing of it is left afterwards.
func TestHeavySharersKeepOldProgramsOut(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	claim := func(owner string, weight int) driver.Claim {
		c, err := d.Claim(driver.Request{Resource: "a", Owner: owner, Mode: driver.Shared, Limit: 9, Weight: weight, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	least := func() float64 {
		all, err := client.ZRangeWithScores(t.Context(), redislock.DefaultPrefix+"\x1fl{"+redislock.DefaultPrefix+"a}", 0, 0).Result()
		if err != nil || len(all) != 1 {
			t.Fatalf("limits: %v, %v", all, err)
		}
		return all[0].Score
	}
	light, heavy, other := claim("light", 1), claim("heavy", 3), claim("other", 4)
	for _, step := range []struct {
		do   func()
		want float64
	}{
		{func() { claimtest.Granted(t, light) }, 9},
		{func() { claimtest.Granted(t, heavy) }, 1},
		{func() { claimtest.Granted(t, other) }, 1},
		{func() { claimtest.Released(t, heavy) }, 1},
		{func() { claimtest.Released(t, other) }, 9},
	} {
		if step.do(); least() != step.want {
			t.Errorf("the least limit is %v, want %v", least(), step.want)
		}
	}
	claimtest.Granted(t, heavy)
	for _, c := range []driver.Claim{light, heavy} {
		claimtest.Released(t, c)
	}
	left, err := client.Keys(t.Context(), "*\x1f[wl]*").Result()
	if err != nil || len(left) > 0 {
		t.Errorf("of weights and limits is left %q, %v", left, err)
	}
}
