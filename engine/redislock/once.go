package redislock

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

// scriptOnce may be sent again by go-redis. The script recognises a repetition by the id of its
// attempt.
var scriptOnce = &script{name: "once.lua"}

// MaxOnceArgs is the most arguments that a command may have after the target. Lua's stack holds
// 8,000 values, and the server's own code needs some.
const MaxOnceArgs = 7000

// Once lets a command on Redis take effect exactly once for each key, such as
// "order-42/reserve", even if the job is repeated. It is the equivalent of [fence.Once] for
// Redis, which explains why a lock alone cannot do this. The mark and the command are one
// script, so both happen or neither.
//
// A failover to a replica that had not received the script loses both. The command may then
// happen again, even if somebody else has seen its effect.
type Once struct {
	client redis.UniversalClient
	prefix string
	keep   time.Duration
}

// OnceOptions configure a Once. The zero value of each field is its default.
type OnceOptions struct {
	// Prefix begins the keys in which Redis keeps marks and tokens; "": "once:". It has no
	// control characters, and no braces except a complete hash tag.
	Prefix string
	// Keep is how long a mark stays, and the last token seen; 0: forever. After that the key
	// must not be used again, because the command would be repeated.
	Keep time.Duration
}

// NewOnce returns a Once on client; nil options are the defaults. It does no I/O.
func NewOnce(client redis.UniversalClient, opts *OnceOptions) (*Once, error) {
	of := *cmp.Or(opts, &OnceOptions{})
	o := &Once{client: client, prefix: cmp.Or(of.Prefix, "once:"), keep: of.Keep}
	if isNil(client) {
		return nil, errors.New("redislock: no client")
	}
	if o.keep < 0 || o.keep%time.Millisecond != 0 {
		return nil, fmt.Errorf("redislock: Keep %v is no positive number of milliseconds", o.keep)
	}
	return o, checkPrefix(o.prefix)
}

// Do runs one command, such as "DECRBY", target, 2, and marks key as done. target is the only
// key that the command uses; key must pass [driver.CheckName]. On a Cluster key, target and the
// lease's resource must have the same hash tag. More than [MaxOnceArgs] args are an error, and
// nothing is sent.
//
// A command that the server refuses leaves no mark, whatever the reason: a value of the wrong
// type, no memory, no permission, no such command.
//
// If this call made the command take effect, Do returns the command's reply, or nil if the reply
// was lost. ErrDone of package fence means that the command took effect before, by any caller.
// [fence.ErrStale] means that it did not, because a later holder of the lease's resource was
// here. A redis.Error is the command's refusal; nothing has happened. After any other error the
// outcome is unknown. Call Do again, under this lease or another: the command takes effect, or
// Do returns ErrDone.
func (o *Once) Do(ctx context.Context, key string, lease fence.Lease, command, target string, args ...any) (any, error) {
	if err := driver.CheckName(key); err != nil {
		return nil, fmt.Errorf("redislock: once: %w", err)
	}
	if lease.Token() == 0 {
		return nil, fmt.Errorf("%w: token 0 is no fencing token", fence.ErrStale)
	}
	if len(args) > MaxOnceArgs {
		return nil, fmt.Errorf("redislock: once: %d arguments are more than %d", len(args), MaxOnceArgs)
	}
	sum := sha256.Sum256([]byte(lease.Owner())) // a hash, because anyone who knows the owner can release the lease
	all := append([]any{hex.EncodeToString(sum[:16]), lease.Token(), rand.Text(), o.keep.Milliseconds(), command}, args...)
	keys := []string{o.prefix + "done:" + key, o.prefix + "token:" + lease.Name(), target}
	reply, err := redis.NewScript(scriptOnce.load().text).Run(ctx, o.client, keys, all...).Slice()
	if _, server := errors.AsType[redis.Error](err); server {
		// It is not the command's refusal. go-redis may have sent the command before, and its
		// answer was lost.
		return nil, fmt.Errorf("redislock: once %q: %v", key, err)
	}
	if err != nil {
		return nil, fmt.Errorf("redislock: once %q: %w", key, err)
	}
	return onceReply(key, lease.Token(), reply)
}

func onceReply(key string, token uint64, reply []any) (any, error) {
	if len(reply) == 0 {
		return nil, fmt.Errorf("redislock: once %q: alien reply", key)
	}
	switch number(reply[0]) {
	case 1:
		return nil, nil
	case 2:
		return nil, fmt.Errorf("redislock: once %q: %w", key, fence.ErrDone)
	case 3:
		return nil, fmt.Errorf("%w: %d for %q", fence.ErrStale, token, key)
	case 4:
		return nil, fmt.Errorf("redislock: once %q: %w", key, refusal(fmt.Sprint(reply[1:]...)))
	}
	if len(reply) < 2 {
		return nil, nil
	}
	return reply[1], nil
}

// A refusal is the error that a command has answered with, a redis.Error.
type refusal string

// Error returns the server's text.
func (r refusal) Error() string { return string(r) }

// RedisError makes a refusal a redis.Error.
func (refusal) RedisError() {}
