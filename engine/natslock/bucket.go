package natslock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// A bucket describes the store's bucket. It is never changed.
type bucket struct {
	jetstream.KeyValue
	ttls   bool          // it supports a TTL for each value
	past   bool          // it keeps more than the last value of a key
	maxAge time.Duration // it forgets older values; 0: none
	first  bool          // its messages are numbered from 1, as those of a new bucket of the same name may be
	server string        // the only server that has it; "": several have it, or it is unknown
}

// repeats reports whether a number that was read may belong to another message by now, although the
// connection is the same. That is so if the bucket was created again. It is also so if a single
// server has the bucket, is not the one that is connected to, and came back without its last
// messages.
func (b *bucket) repeats(nc *nats.Conn) bool {
	return b.first || b.server != "" && b.server != nc.ConnectedServerName()
}

// open returns the bucket.
func (s *store) open(ctx context.Context) (*bucket, error) {
	s.mu.Lock()
	b := s.of
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	kv, err := settled(ctx, s, func() (jetstream.KeyValue, error) {
		return insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) { return s.js.KeyValue(ctx, s.bucket) })
	})
	if err != nil {
		return nil, err
	}
	status, err := insist(ctx, kv.Status)
	if err != nil {
		return nil, err
	}
	b = &bucket{KeyValue: kv, ttls: status.LimitMarkerTTL() > 0, past: status.History() != 1, maxAge: status.TTL()}
	if status, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		info := status.StreamInfo()
		if err := unfit(s.js.Conn(), info); err != nil {
			return nil, err
		}
		b.first = info.Config.FirstSeq <= 1
		if info.Config.Replicas == 1 && info.Cluster != nil {
			b.server = info.Cluster.Leader
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = b
	return b, nil
}

// unfit returns why a bucket cannot keep locks: its values may be replaced from elsewhere, or other
// servers may have another bucket of the same name.
func unfit(nc *nats.Conn, info *jetstream.StreamInfo) error {
	if c := &info.Config; len(c.Sources) > 0 || c.Mirror != nil || c.SubjectTransform != nil {
		return fmt.Errorf("natslock: %w: the bucket has a source, a mirror or a subject transform: what is written elsewhere replaces its values", driver.ErrUnsupported)
	}
	c := info.Cluster
	if hosts := len(nc.Opts.Servers); hosts > 1 && c != nil && c.Name == "" && c.Leader == nc.ConnectedServerName() {
		return fmt.Errorf("natslock: %w: %d servers are named, and %q, which has the bucket, is in no cluster: the others may have a bucket each",
			driver.ErrUnsupported, hosts, c.Leader)
	}
	return nil
}

// failed translates the error of a call. The next call looks the bucket up again if it may be
// another one by now.
func (s *store) failed(ctx context.Context, err error) error {
	means := explain(ctx, err)
	if answered(err) && !errors.Is(means, caslock.ErrChanged) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.of = nil
	}
	return means
}

const (
	// missingFor is how long servers of a cluster must say that there is no bucket before it is
	// believed. A new leader, or the only server that has the bucket, says so until it has caught
	// up with its own storage.
	missingFor = 2 * time.Second
	// missingAgain is how often they are asked meanwhile.
	missingAgain = 100 * time.Millisecond
)

// settled asks a question, and repeats it while servers that may not have caught up answer that
// there is no bucket. A single server serves nobody before it has read its storage.
func settled[T any](ctx context.Context, s *store, ask func() (T, error)) (T, error) {
	for start := time.Now(); ; {
		value, err := ask()
		if !isMissing(err) || s.js.Conn().ConnectedClusterName() == "" || time.Since(start) > missingFor {
			return value, err
		}
		if pause.For(ctx, missingAgain) != nil {
			return value, err
		}
	}
}
