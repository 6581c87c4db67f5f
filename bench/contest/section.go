package contest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// A Section is the memory that a lock protects. Nothing else protects it, so holders that overlap
// lose updates of the counter. It may be in memory that processes share.
type Section struct {
	counter, holder     atomic.Int64
	turns, processTurns atomic.Int64 // how often the holder, and its process, differed from the previous one
}

// holderOf returns the number of a goroutine of a process for pass. Both count from 0. The process
// is in the upper half, where pass finds it.
func holderOf(process, goroutine int) int64 { return int64(process+1)<<32 | int64(goroutine) }

// pass is the work of one holder.
func (s *Section) pass(holder int64) {
	n := s.counter.Load()
	if last := s.holder.Load(); last != holder {
		s.holder.Store(holder)
		s.turns.Store(s.turns.Load() + 1)
		if last>>32 != holder>>32 {
			s.processTurns.Store(s.processTurns.Load() + 1)
		}
	}
	runtime.Gosched()
	s.counter.Store(n + 1)
}

// excluded returns an error unless the counter equals the number of sections.
func (s *Section) excluded(sections int64) error {
	if n := s.counter.Load(); n != sections {
		return fmt.Errorf("%d sections were counted and %d held: holders overlapped", n, sections)
	}
	return nil
}

// shareSection maps the section in the file at path until unmap is called. It creates a missing
// file.
func shareSection(path string) (s *Section, unmap func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	size := int(unsafe.Sizeof(Section{}))
	if err := file.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	unmap = func() { _ = syscall.Munmap(memory) } // the process ends soon after
	return (*Section)(unsafe.Pointer(&memory[0])), unmap, nil
}

// patience is how long a lock may take for what others do in seconds. A lock that hangs must not
// stop the whole run.
const patience = 30 * time.Second

var errHung = fmt.Errorf("it hung for %v", patience)

// patiently returns a context that ends after patience. It has no deadline, because some locks do
// less with a context that has one.
func patiently() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	timer := time.AfterFunc(patience, func() { cancel(errHung) })
	return ctx, func() { timer.Stop(); cancel(nil) }
}

// Cycle locks and unlocks the given number of times. It returns the duration of each cycle before
// an error.
func Cycle(lock LockFunc, name string, s *Section, times int) ([]time.Duration, error) {
	ctx, end := patiently()
	defer end()
	took := make([]time.Duration, times)
	for i := range took {
		start := time.Now()
		held, err := lock(ctx, name)
		if err != nil {
			return took[:i], cmp.Or(context.Cause(ctx), err)
		}
		s.pass(holderOf(0, 0))
		if err := held.Unlock(); err != nil {
			return took[:i], err
		}
		took[i] = time.Since(start)
	}
	return took, nil
}
