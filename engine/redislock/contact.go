package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// A contact is the first contact with Redis servers. go-redis waits for a server that restarts: it
// dials again and again, with pauses between. A user who has mistyped a port must not wait for
// that, so there are no pauses until a server has answered.
type contact struct{ made atomic.Bool }

// redialPause is the default of go-redis.
const redialPause = 100 * time.Millisecond

// dialPause is the DialerRetryBackoff of the clients.
func (c *contact) dialPause(int) time.Duration {
	if c.made.Load() {
		return redialPause
	}
	return 0
}

// make returns nil as soon as more than half of the servers have answered, and an error as soon as
// so many cannot answer any more.
func (c *contact) make(ctx context.Context, servers ...redis.UniversalClient) error {
	ctx, cancel := storeurl.Waiting(ctx)
	defer cancel()
	answers := make(chan error, len(servers))
	for _, server := range servers {
		go func() { answers <- ping(ctx, server) }()
	}
	majority := len(servers)/2 + 1
	var answered int
	var failed []error
	for answered < majority {
		select {
		case err := <-answers:
			if err == nil {
				answered++
			} else if failed = append(failed, err); len(failed) > len(servers)-majority {
				return fewer(majority, len(servers), errors.Join(failed...))
			}
		case <-ctx.Done(): // a client that waits for its sentinels ignores the context
			return fewer(majority, len(servers), errors.Join(append(failed, storeurl.Silent(ctx, ctx.Err()))...))
		}
	}
	c.made.Store(true)
	return nil
}

func fewer(majority, servers int, err error) error {
	if servers == 1 {
		return err
	}
	return fmt.Errorf("fewer than %d of %d servers can be used: %w", majority, servers, err)
}

func ping(ctx context.Context, server redis.UniversalClient) error {
	err := server.Process(ctx, unrepeated{redis.NewStatusCmd(ctx, "ping")})
	_, reply := errors.AsType[redis.Error](err)
	switch {
	case err == nil, redis.IsPermissionError(err): // a user without the right to PING may still lock
		return nil
	case isMisconf(err): // reads are served
		return nil
	case errors.Is(err, redis.Nil): // the sentinels' answer when asked for the primary
		return errors.New("the sentinels know no primary of that name")
	case redis.IsAuthError(err):
		return fmt.Errorf("%w: %w", ErrAuth, err)
	case ctx.Err() != nil:
		return storeurl.Silent(ctx, err)
	case !reply:
		return fmt.Errorf("no server answers: %w", err)
	}
	return err
}

// unrepeated is a command that go-redis sends only once.
type unrepeated struct{ *redis.StatusCmd }

func (unrepeated) NoRetry() bool { return true }
