package natslock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/internal/pause"
)

// List implements caslock.Store, in the order of the last writes. after is the revision of the last
// item read. Items that are written meanwhile come again.
func (s *store) List(ctx context.Context, prefix, after string, limit int) (items []caslock.Listed, next string, err error) {
	var from uint64
	if after != "" {
		if from, err = strconv.ParseUint(after, 10, 64); err != nil {
			return nil, "", fmt.Errorf("natslock: no revision to go on after: %w", err)
		}
	}
	err = s.watch(ctx, "*", func() {}, func(i caslock.Item, more bool) bool {
		if !more || !strings.HasPrefix(i.Name, prefix) {
			return more
		}
		if len(items) == limit {
			next = strconv.FormatUint(s.Number(items[limit-1].Version), 10)
			return false
		}
		items = append(items, caslock.Listed{Item: i})
		return true
	}, jetstream.IgnoreDeletes(), jetstream.ResumeFromRevision(from+1))
	if err != nil {
		return nil, "", err
	}
	return items, next, nil
}

// Beside implements caslock.Queuer.
func (s *store) Beside(ctx context.Context, first string) iter.Seq2[caslock.Item, error] {
	return func(yield func(caslock.Item, error) bool) {
		items, err := s.beside(ctx, cmp.Or(caslock.Escape(first, plain), nobody)+".*")
		for _, i := range items {
			if !yield(i, nil) {
				return
			}
		}
		if err != nil {
			yield(caslock.Item{}, err)
		}
	}
}

const (
	// behindFor bounds how long beside repeats a list. The replica may never have the leader's last
	// message: by its own clock, the message may have expired already.
	behindFor   = 2 * time.Second
	behindAgain = 20 * time.Millisecond
)

// beside returns the values of keys. Any replica may list them, and a replica may lag behind. So
// beside repeats the list until it contains the leader's last message for the keys, which may be a
// removal.
func (s *store) beside(ctx context.Context, keys string) (items []caslock.Item, err error) {
	for start := time.Now(); ; {
		last, err := s.read(ctx, keys)
		if err != nil || last.Version == "" {
			return nil, err
		}
		seen := uint64(0)
		items = nil
		err = s.watch(ctx, keys, func() {}, func(i caslock.Item, more bool) bool {
			if seen = max(seen, s.Number(i.Version)); i.Value != nil {
				items = append(items, i)
			}
			return more
		})
		if err != nil || seen >= s.Number(last.Version) || time.Since(start) > behindFor {
			return items, err
		}
		if err := pause.For(ctx, behindAgain); err != nil {
			return nil, explain(ctx, err)
		}
	}
}

// Watch implements caslock.Watcher. It ends with the connection. Otherwise the client would not
// notice for up to 20 s that a restarted server has forgotten the watch.
func (s *store) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	epoch := s.epoch()
	changed := s.js.Conn().StatusChanged(nats.CONNECTED)
	ctx, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(ctx, func() { s.js.Conn().RemoveStatusListener(changed) }) // waits while the client connects
	go func() {
		for range changed { // until the listener is removed
			if s.epoch() != epoch {
				end()
			}
		}
	}()
	return s.watch(ctx, all, begun, func(i caslock.Item, more bool) bool {
		if more {
			heard(i)
		}
		return s.epoch() == epoch
	}, jetstream.UpdatesOnly())
}

// errEnded means that the client has given up the watch.
var errEnded = errors.New("natslock: the watch has ended")

// all is the pattern of all keys.
const all = ">"

// watch calls heard for each change of some keys until it returns false. more is false once
// everything that existed at first was reported.
func (s *store) watch(ctx context.Context, keys string, begun func(), heard func(i caslock.Item, more bool) bool, opts ...jetstream.WatchOpt) error {
	ctx, kv, end, err := s.begin(ctx, s.prefix()+s.api("CONSUMER.CREATE")+".")
	if err != nil {
		return err
	}
	defer end()
	epoch := s.epoch()
	w, err := within(ctx, func() (jetstream.KeyWatcher, error) {
		w, err := settled(ctx, s, func() (jetstream.KeyWatcher, error) { return kv.Watch(ctx, keys, opts...) })
		if err == nil {
			context.AfterFunc(ctx, func() { drop(w) }) // nobody waits for it
		}
		return w, err
	}, nil)
	if err != nil {
		return s.failed(ctx, err)
	}
	begun()
	for {
		select {
		case <-ctx.Done():
			return explain(ctx, ctx.Err())
		case entry, ok := <-w.Updates():
			switch {
			case ctx.Err() != nil: // earlier entries may have been dropped
				return explain(ctx, ctx.Err())
			case !ok:
				return errEnded
			}
			var i caslock.Item
			if entry != nil {
				if i, ok = itemOf(entry, epoch); !ok {
					continue // not a key of ours
				}
			}
			if !heard(i, entry != nil) {
				return nil
			}
		}
	}
}

// drop ends a watch. The client closes the channel of entries once it has delivered the one that it
// waits to deliver.
func drop(w jetstream.KeyWatcher) {
	_ = w.Stop() // fails on a closed connection, which ends the watch itself
	for range w.Updates() {
	}
}

func itemOf(entry jetstream.KeyValueEntry, epoch uint64) (i caslock.Item, ok bool) {
	i.Name, ok = nameOf(entry.Key())
	if entry.Operation() == jetstream.KeyValuePut {
		i.Value = entry.Value()
	}
	i.Version = version(entry.Revision(), epoch, i.Value)
	return i, ok
}
