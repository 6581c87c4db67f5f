package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// A server that grants nothing to anybody yet may do so by the time a copy of the attempt comes:
// who gives up must then refuse it.
func TestNotYetMayBeGrantedByACopy(t *testing.T) {
	t.Parallel()
	for reply, want := range map[int64]error{replyForgetful: ErrForgetful, replyNoHistory: ErrNoFenceHistory} {
		d, err := New(noServer(func(_ context.Context, cmd redis.Cmder) error {
			if sent, ok := cmd.(sentCmd); ok {
				sent.NoRetry() // go-redis asks, and sends it again
				sent.SetVal([]any{reply, "memory", int64(0)})
				return nil
			}
			return version("7.0.0")(t.Context(), cmd)
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
		d.crowds.meet("lock:n") // acquire.lua answers
		made, err := d.Claim(driver.Request{Resource: "n", Owner: "owner", TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := made.Try(t.Context()); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if c := made.(*claim); !c.load().unsure {
			t.Errorf("%v: what is given up may still be granted", want)
		}
		d.Close()
	}
}
