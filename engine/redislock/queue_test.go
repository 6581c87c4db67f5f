package redislock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/queue"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// A standing is a claim that stands in a queue.
type standing struct {
	driver.Claim
	terms queue.Claim
	asked time.Time // the last time; zero: never
}

// errLate: a claim asked so late that its place may have ended, and nothing can be said.
var errLate = errors.New("late")

// ask asks for the claim, which keeps its place. One that is granted may be refused until it has been told.
func (s *standing) ask(ctx context.Context, granted bool) error {
	before := time.Now()
	_, err := s.Try(ctx)
	if busy, ok := errors.AsType[*driver.Busy](err); ok && granted {
		select {
		case <-busy.Wake:
			_, err = s.Try(ctx)
		case <-time.After(time.Second):
		}
	}
	if s.late() {
		return errLate
	}
	s.asked = before
	return err
}

// late reports whether the place may have ended, which lives for 3 s.
func (s standing) late() bool { return !s.asked.IsZero() && time.Since(s.asked) > 2*time.Second }

var queues = flag.Int("queues", 0, "how many random queues the scripts decide; 0: 10,000, and 2,000 with -short")

// TestScriptsFollowTheRule has the scripts decide random queues, in which some leave, and
// compares who holds with what package queue says.
func TestScriptsFollowTheRule(t *testing.T) {
	t.Parallel()
	const atOnce = 64
	r := servers.StartRedis(t)
	d, err := redislock.Open(&redis.Options{Addr: r.Addr()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	next := make(chan int)
	var deciders sync.WaitGroup
	for range atOnce {
		deciders.Go(func() {
			for n := range next {
				err := errLate
				for again := 0; errors.Is(err, errLate) && t.Context().Err() == nil; again++ {
					err = decide(t.Context(), d, fmt.Sprint("queue/", n, "/", again))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	many := *queues
	if many == 0 && testing.Short() {
		many = 2_000
	} else if many == 0 {
		many = 10_000
	}
	for n := range many {
		if t.Failed() {
			break
		}
		next <- n
	}
	close(next)
	deciders.Wait()
}

// decide has the scripts decide one random queue until everybody has left it.
func decide(ctx context.Context, d driver.Driver, name string) error {
	all := make([]standing, 1+rand.N(5))
	for i := range all {
		s := &all[i]
		if rand.N(4) > 0 {
			s.terms = queue.Claim{Mode: driver.Shared, Limit: rand.N(5)}
			s.terms.Weight = rand.N(1 + cmp.Or(s.terms.Limit, 4))
		}
		var err error
		s.Claim, err = d.Claim(driver.Request{
			Resource: name, Owner: fmt.Sprint(name, "/", i), TTL: time.Minute, Queue: true,
			Mode: s.terms.Mode, Limit: s.terms.Limit, Weight: s.terms.Weight,
		})
		if err != nil {
			return err
		}
	}
	for len(all) > 0 {
		held := queue.Holding(all, func(s standing) queue.Claim { return s.terms })
		for i := range all {
			err := all[i].ask(ctx, i < held)
			if err != nil && !errors.Is(err, driver.ErrBusy) {
				return err
			}
			if holds := err == nil; holds != (i < held) {
				if slices.ContainsFunc(all, standing.late) {
					return errLate
				}
				return fmt.Errorf("of %s, number %d holds: %v; the rule says that %d hold", describe(all), i, holds, held)
			}
		}
		stay := all[:0]
		for _, s := range all {
			if len(all) > 1 && rand.N(2) == 0 {
				stay = append(stay, s)
			} else if err := s.Release(ctx, driver.End{}); err != nil {
				if errors.Is(err, driver.ErrLost) && s.late() {
					return errLate
				}
				return err
			}
		}
		all = stay
	}
	return nil
}

func describe(all []standing) string {
	text := ""
	for _, s := range all {
		text += fmt.Sprintf("[%v limit %d]", s.terms.Mode, s.terms.Limit)
	}
	return text
}
