package caslock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
)

// A parting store holds up the next write of a place, and its answer. cut ends the watch.
type parting struct {
	*queueing
	cut           chan struct{}
	write, answer chan struct{} // nil: nothing is held up
}

func (s *parting) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	if s.write == nil || !isPlace(name) {
		return s.queueing.Write(ctx, name, value, was, life)
	}
	<-s.write
	version, err := s.queueing.Write(ctx, name, value, was, life)
	<-s.answer
	return version, err
}

func (s *parting) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	return watchUntil(ctx, s.cut, s.queueing, begun, heard)
}

// watchUntil watches s until cut receives.
func watchUntil(ctx context.Context, cut <-chan struct{}, s *queueing, begun func(), heard func(caslock.Item)) error {
	ctx, over := context.WithCancel(ctx)
	defer over()
	go func() {
		select {
		case <-cut:
			over()
		case <-ctx.Done():
		}
	}()
	return s.Watch(ctx, begun, heard)
}

// A newcomer whose place is made while the watch is off, and answered later, does not wait for the
// watch to report it.
func TestPlaceMadeBetweenTwoWatches(t *testing.T) {
	for what, answered := range map[string]time.Duration{"answered before the next begins": 0, "answered when the next has begun": time.Second} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &parting{queueing: &queueing{}, cut: make(chan struct{})}
				claimtest.Granted(t, claimOf(t, process(t, s.queueing), driver.Request{Owner: "holder"}))
				d := process(t, s)
				claimtest.Refused(t, claimOf(t, d, driver.Request{Owner: "first", Queue: true}))
				s.write, s.answer = make(chan struct{}), make(chan struct{})
				second := claimOf(t, d, driver.Request{Owner: "second", Queue: true})
				tried := make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					_, err := second.Try(ctx)
					tried <- err
				}()
				time.Sleep(10 * time.Millisecond) // until the place is written
				s.cut <- struct{}{}
				synctest.Wait()
				close(s.write)
				time.Sleep(10*time.Millisecond + answered)
				close(s.answer)
				start := time.Now()
				if err := <-tried; !errors.Is(err, driver.ErrNotYet) || time.Since(start) > time.Second {
					t.Errorf("%v after %v, want ErrNotYet at once", err, time.Since(start))
				}
				claimtest.Refused(t, second)
			})
		})
	}
}
