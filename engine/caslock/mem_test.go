package caslock_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/engine/caslock"
)

// travel takes as long as a request or an answer on its way.
func travel() { time.Sleep(rand.N(500 * time.Microsecond)) }

// A hashed is a store whose versions are hashes of the values, as an object store's are. It is no
// Watcher and no Counter.
type hashed struct {
	mu     sync.Mutex
	values map[string][]byte // guarded by mu
}

func (s *hashed) version(name string) caslock.Version {
	value, ok := s.values[name]
	if !ok {
		return ""
	}
	return caslock.Version(fmt.Sprintf("%x", md5.Sum(value)))
}

func (s *hashed) Read(ctx context.Context, name string) (caslock.Item, error) {
	travel()
	defer travel()
	s.mu.Lock()
	defer s.mu.Unlock()
	return caslock.Item{Value: bytes.Clone(s.values[name]), Version: s.version(name)}, ctx.Err()
}

func (s *hashed) Write(ctx context.Context, name string, value []byte, was caslock.Version, _ time.Duration) (caslock.Version, error) {
	travel()
	defer travel()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case value == nil:
		panic("removed from a store that does not count")
	case s.version(name) != was:
		return "", caslock.ErrChanged
	}
	if s.values == nil {
		s.values = make(map[string][]byte)
	}
	s.values[name] = bytes.Clone(value)
	return s.version(name), nil
}

// all is what the store has; putBack has it have that again, and nothing else.
func (s *hashed) all() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values)
}

func (s *hashed) putBack(all map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = maps.Clone(all)
}

func (s *hashed) List(_ context.Context, prefix, after string, limit int) ([]caslock.Listed, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items, next := page(maps.Keys(s.values), prefix, after, limit, func(name string) caslock.Item {
		return caslock.Item{Value: s.values[name]}
	})
	return items, next, nil
}

// page is one of the names that begin with prefix, in order.
func page(names iter.Seq[string], prefix, after string, limit int, item func(name string) caslock.Item) (items []caslock.Listed, next string) {
	for _, name := range slices.Sorted(names) {
		if !strings.HasPrefix(name, prefix) || name <= after {
			continue
		}
		if len(items) == limit {
			return items, items[limit-1].Name
		}
		i := item(name)
		i.Name = name
		items = append(items, caslock.Listed{Item: i})
	}
	return items, ""
}

// A counting is a store that numbers its writes, forgets what is not needed any more, and tells
// of changes, as a key-value bucket of NATS does.
type counting struct {
	mu      sync.Mutex
	last    uint64                      // guarded by mu
	values  map[string]*counted         // guarded by mu
	heard   map[int]chan<- caslock.Item // guarded by mu
	watches int                         // guarded by mu
	forgets bool                        // what is removed leaves no version
	still   bool                        // a removal of what has no value is no write, as of a Lease of Kubernetes
}

type counted struct {
	value  []byte
	number uint64
	until  time.Time // zero: for ever
}

func (s *counting) Number(v caslock.Version) uint64 {
	n, _ := strconv.ParseUint(string(v), 10, 64)
	return n
}

// item requires s.mu.
func (s *counting) item(name string) caslock.Item {
	c := s.values[name]
	switch {
	case c == nil:
		return caslock.Item{Name: name}
	case !c.until.IsZero() && time.Now().After(c.until):
		delete(s.values, name)
		return caslock.Item{Name: name}
	}
	return caslock.Item{Name: name, Value: c.value, Version: caslock.Version(fmt.Sprint(c.number))}
}

func (s *counting) Read(ctx context.Context, name string) (caslock.Item, error) {
	travel()
	defer travel()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item(name), ctx.Err()
}

func (s *counting) Write(ctx context.Context, name string, value []byte, was caslock.Version, life time.Duration) (caslock.Version, error) {
	travel()
	defer travel()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case s.item(name).Version != was:
		return "", caslock.ErrChanged
	case s.still && value == nil && s.item(name).Value == nil:
		return was, nil
	}
	s.last++
	if s.values == nil {
		s.values = make(map[string]*counted)
	}
	c := &counted{value: bytes.Clone(value), number: s.last}
	if life > 0 {
		c.until = time.Now().Add(life)
	}
	s.values[name] = c
	for _, ch := range s.heard {
		ch <- s.item(name)
	}
	if value == nil && s.forgets {
		delete(s.values, name)
		return "", nil
	}
	return caslock.Version(fmt.Sprint(s.last)), nil
}

func (s *counting) List(_ context.Context, prefix, after string, limit int) ([]caslock.Listed, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items, next := page(maps.Keys(s.values), prefix, after, limit, s.item)
	return items, next, nil
}

func (s *counting) Watch(ctx context.Context, begun func(), heard func(caslock.Item)) error {
	ch := make(chan caslock.Item, 10000)
	s.mu.Lock()
	if s.heard == nil {
		s.heard = make(map[int]chan<- caslock.Item)
	}
	s.watches++
	id := s.watches
	s.heard[id] = ch
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.heard, id)
		s.mu.Unlock()
	}()
	begun()
	for {
		select {
		case i := <-ch:
			heard(i)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// empty forgets everything but its numbers.
func (s *counting) empty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = nil
}

// flush forgets everything, and the numbers too.
func (s *counting) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.last = nil, 0
}

// has reports whether there is a value.
func (s *counting) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item(name).Value != nil
}
