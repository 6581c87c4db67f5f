package redislock

import "sync"

// maxKnown bounds how many locks a driver remembers. At about 100 bytes each that is half a
// megabyte.
const maxKnown = 4096

// known is what a driver remembers of a lock.
type known struct {
	// The largest fence that the driver has seen; 0: none. A server that goes back, because it has
	// lost the counter and its clock was set back, or because it has an old snapshot, is noticed by
	// it.
	fence uint64
	// The lock was last not in the plain case, and may not be in it now.
	contended bool
}

// knownLocks is what a driver remembers. The locks that were not used for longest are forgotten
// first.
type knownLocks struct {
	mu       sync.Mutex
	now, old map[string]known // guarded by mu; by lock key. When now is full it becomes old
}

func (k *knownLocks) of(lock string) known {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.now[lock]; ok {
		return one
	}
	return k.old[lock]
}

func (k *knownLocks) saw(lock string, fence uint64) {
	k.update(lock, func(one known) known { return known{max(one.fence, fence), one.contended} })
}

func (k *knownLocks) contended(lock string, is bool) {
	k.update(lock, func(one known) known { return known{one.fence, is} })
}

func (k *knownLocks) update(lock string, change func(known) known) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one, ok := k.now[lock]
	if !ok {
		one = k.old[lock]
		if len(k.now) >= maxKnown/2 {
			k.old, k.now = k.now, nil
		}
		if k.now == nil {
			k.now = make(map[string]known)
		}
	}
	k.now[lock] = change(one)
}
