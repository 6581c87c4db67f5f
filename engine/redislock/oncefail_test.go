package redislock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// However a command fails, it leaves no mark: what can be done later is done then.
func TestOnceMarksNothingThatFailed(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	_, client := newOnce(t, r.Addr(), nil)
	many := func(n int) []any { return slices.Repeat([]any{"x"}, n) }
	for _, c := range []struct {
		name    string
		rules   string // of the user that fails
		command string
		args    []any
	}{
		{name: "WrongType", command: "INCR"},
		{name: "NoSuchCommand", command: "FROB"},
		{name: "EmptyCommand", command: ""},
		{name: "TooFewArguments", command: "RPUSH"},
		{name: "NotForScripts", command: "WATCH"},
		{name: "MoreThanLuaUnpacks", command: "RPUSH", args: many(9000)},
		{name: "MoreThanTheStackTakes", command: "RPUSH", args: many(7999)},
		{name: "EffectForbidden", rules: "-rpush", command: "RPUSH", args: many(1)},
		{name: "TargetForbidden", rules: "resetkeys ~once:*", command: "RPUSH", args: many(1)},
		{name: "NoDel", rules: "-del", command: "INCR"},
		{name: "NoSet", rules: "-set", command: "RPUSH", args: many(1)},
		{name: "NoExpiry", rules: "-pexpire", command: "INCR"},
		{name: "NoHash", rules: "-hset", command: "RPUSH", args: many(1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := holding{"list", "x", 10}
			r.Must(t, "DEL", "list")
			r.Must(t, "RPUSH", "list", "first")
			r.Must(t, strings.Fields("ACL SETUSER limited reset on >pw ~* +@all "+c.rules)...)
			limited := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "limited", Password: "pw"})
			defer limited.Close()
			for _, keep := range []redislock.OnceOptions{{}, {Prefix: "once:kept:", Keep: redislock.DefaultMinUptime}} {
				fails, err := redislock.NewOnce(limited, &keep)
				if err != nil {
					t.Fatal(err)
				}
				if reply, err := fails.Do(t.Context(), c.name, l, c.command, "list", c.args...); err == nil || errors.Is(err, fence.ErrDone) {
					t.Fatalf("it was to fail: %v, %v", reply, err)
				}
				if n := client.LLen(t.Context(), "list").Val(); n != 1 {
					t.Fatalf("something happened: the list has %d elements", n)
				}
				works, err := redislock.NewOnce(client, &keep)
				if err != nil {
					t.Fatal(err)
				}
				if reply, err := works.Do(t.Context(), c.name, l, "RPUSH", "list", "second"); err != nil || reply != int64(2) {
					t.Errorf("done later: %v, %v", reply, err)
				}
				if _, err := works.Do(t.Context(), c.name, l, "RPUSH", "list", "second"); !errors.Is(err, fence.ErrDone) {
					t.Errorf("done twice: %v", err)
				}
				r.Must(t, "LTRIM", "list", "0", "0")
			}
		})
	}
}

// As many arguments as Do takes are done, and marked.
func TestOnceTakesManyArguments(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	o, _ := newOnce(t, r.Addr(), nil)
	all := slices.Repeat([]any{"x"}, redislock.MaxOnceArgs)
	if n, err := o.Do(t.Context(), "many", holding{"list", "x", 10}, "RPUSH", "list", all...); err != nil || n != int64(len(all)) {
		t.Errorf("%v, %v", n, err)
	}
	if _, err := o.Do(t.Context(), "many", holding{"list", "x", 10}, "RPUSH", "list", all...); !errors.Is(err, fence.ErrDone) {
		t.Errorf("again: %v", err)
	}
	if _, err := o.Do(t.Context(), "more", holding{"list", "x", 10}, "RPUSH", "list", append(all, "x")...); err == nil {
		t.Error("takes more")
	}
}
