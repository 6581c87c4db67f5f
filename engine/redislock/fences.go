package redislock

import "sync"

// maxFences bounds how many resources' fences a driver remembers; at about 100 bytes
// each that is half a megabyte.
const maxFences = 4096

// fences remembers the largest fence that this driver has seen of each resource, so that
// a server which went back (a lost counter and a clock set back, an old snapshot) is
// noticed. The resources used longest ago are forgotten first.
type fences struct {
	mu       sync.Mutex
	now, old map[string]uint64 // guarded by mu; by lock key. When now is full it becomes old
}

// last returns the largest fence seen, 0: none.
func (f *fences) last(lock string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, ok := f.now[lock]; ok {
		return n
	}
	return f.old[lock]
}

// saw notes fence.
func (f *fences) saw(lock string, fence uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.now[lock]
	if !ok {
		n = f.old[lock]
		if len(f.now) >= maxFences/2 {
			f.old, f.now = f.now, nil
		}
		if f.now == nil {
			f.now = make(map[string]uint64)
		}
	}
	f.now[lock] = max(n, fence)
}
