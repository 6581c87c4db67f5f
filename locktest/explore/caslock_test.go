package explore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/locktest/explore"
)

// TestCaslock explores caslock over a network that loses answers, on a store without a clock. It
// forgets nothing: one that does gives fences again, as it begins to count anew.
func TestCaslock(t *testing.T) {
	explore.Run(t, explore.Harness{Name: "caslock", For: time.Second, Settle: 12 * time.Second, Tidy: true, Scenarios: unlessLong("try", "recall"), Known: []string{
		// A process that is away for longer than its call and the release that follows have leaves a lease to its end.
		"try; p2 read 1 = hold 3/4; p2 write 1 = pause 3/2",
		"try; c2 calls Acquire 2 = hold 1; p2 write 3 = hold 5/4; p2 write 4 = pause 3/2",
	}, New: func(*explore.World) func(*explore.Process) driver.Driver {
		values := map[string]*value{"x": {}, "y": {}, "z": {}}
		return func(p *explore.Process) driver.Driver {
			d, err := caslock.New(valueStore{p, values}, &caslock.Options{MinTTL: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}})
}

// A value is all that a store has. The explorer asks it for one request at a time.
type value struct {
	bytes   []byte
	version int       // grows, but the driver does not know
	since   time.Time // of the last write; only the checker, who comes last, is told
}

// valueStore is a caslock.Store as one process sees it.
type valueStore struct {
	process *explore.Process
	values  map[string]*value
}

// answer is what the store says.
type answer struct {
	caslock.Item
	err error
}

func (a answer) String() string { return fmt.Sprintf("version %q: %s %v", a.Version, a.Value, a.err) }

func (s valueStore) call(ctx context.Context, what string, serve func() answer) (caslock.Item, error) {
	a, err := s.process.Call(ctx, what, "", func() any { return serve() })
	if err != nil {
		return caslock.Item{}, err
	}
	return a.(answer).Item, a.(answer).err
}

func (s valueStore) now(name string) answer {
	v := s.values[name]
	i := caslock.Item{Value: v.bytes}
	if s.process.Name() == "checker" {
		i.Age = time.Since(v.since)
	}
	if v.version > 0 {
		i.Version = caslock.Version(fmt.Sprint(v.version))
	}
	return answer{Item: i}
}

func (s valueStore) Read(ctx context.Context, name string) (caslock.Item, error) {
	return s.call(ctx, "read", func() answer { return s.now(name) })
}

func (s valueStore) Write(ctx context.Context, name string, bytes []byte, was caslock.Version, _ time.Duration) (caslock.Version, error) {
	i, err := s.call(ctx, "write", func() answer {
		if s.now(name).Version != was {
			return answer{err: caslock.ErrChanged}
		}
		v := s.values[name]
		v.bytes = bytes
		v.version++
		v.since = time.Now()
		return s.now(name)
	})
	return i.Version, err
}

func (s valueStore) List(context.Context, string, string, int) ([]caslock.Listed, string, error) {
	return nil, "", driver.ErrUnsupported
}
