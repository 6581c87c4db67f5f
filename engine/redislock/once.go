package redislock

import (
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

// scriptOnce may be sent again by go-redis: a repetition is told by its attempt.
var scriptOnce = &script{name: "once.lua"}

// MaxOnceArgs is how many arguments after the target a command may have: Lua's stack has
// room for 8,000 values, and the server's own code takes some.
const MaxOnceArgs = 7000

// Once lets a command on Redis take effect exactly once for each key, such as
// "order-42/reserve", although a job is begun again. It is to Redis what [fence.Once] is to a
// database, and says why a lock alone cannot do that: the mark and the command are one
// script, so both happen or neither.
//
// A failover to a replica that had not heard of the script forgets both. What was told to
// somebody else meanwhile may then happen again.
type Once struct {
	client redis.UniversalClient
	prefix string
	keep   time.Duration
}

// OnceOptions configure a Once. The zero value of each field is its default.
type OnceOptions struct {
	// Prefix of the keys of Redis that marks and tokens are kept in; "": "once:". It has no
	// control characters, and no braces but a complete hash tag.
	Prefix string
	// Keep is how long a mark stays, and the token that was seen last; 0: for ever. Nobody may
	// ask for a key any more that was done so long ago: it would happen again.
	Keep time.Duration
}

// NewOnce returns a Once on client; nil options are the defaults. It does no I/O.
func NewOnce(client redis.UniversalClient, opts *OnceOptions) (*Once, error) {
	o := &Once{client: client, prefix: "once:"}
	if opts != nil {
		o.keep = opts.Keep
		if opts.Prefix != "" {
			o.prefix = opts.Prefix
		}
	}
	if isNil(client) {
		return nil, errors.New("redislock: no client")
	}
	if o.keep < 0 || o.keep%time.Millisecond != 0 {
		return nil, fmt.Errorf("redislock: Keep %v is no positive number of milliseconds", o.keep)
	}
	return o, checkPrefix(o.prefix)
}

// Do runs one command, such as "DECRBY", target, 2, and marks key as done. target is the one
// key that the command uses; key is a name as [driver.CheckName] has it. On a Cluster key,
// target and the lease's resource must have the same hash tag. There may be [MaxOnceArgs] args;
// more are an error, and nothing is asked.
//
// A command that the server refuses, for whatever reason, leaves no mark: a value of the wrong
// type, no memory, no permission, no such command.
//
// It returns the command's reply, or nil where that got lost, when the command took effect
// by this call. ErrDone of package fence: before, by whomever, this caller included.
// [fence.ErrStale]: not by this call, because a later holder of the lease's resource was here.
// A redis.Error is the command's refusal; nothing has happened. After any other error the
// outcome is unknown: call Do again, under this lease or another, and it happens now or gives
// ErrDone.
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
	sum := sha256.Sum256([]byte(lease.Owner())) // whoever knows the owner itself can release the lease
	all := append([]any{hex.EncodeToString(sum[:16]), lease.Token(), rand.Text(), o.keep.Milliseconds(), command}, args...)
	keys := []string{o.prefix + "done:" + key, o.prefix + "token:" + lease.Name(), target}
	reply, err := redis.NewScript(scriptOnce.load().text).Run(ctx, o.client, keys, all...).Slice()
	if _, server := errors.AsType[redis.Error](err); server {
		// Not the command's: go-redis may have sent it before, and its answer got lost.
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

// Error is what Redis said.
func (r refusal) Error() string { return string(r) }

// RedisError makes it a redis.Error.
func (refusal) RedisError() {}
