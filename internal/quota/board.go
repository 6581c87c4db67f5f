//go:build unix

package quota

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Counters at the head of a board, before the counts of the keys.
const (
	done = iota // finished turns
	overKey
	overTotal
	peakKey
	peakTotal
	total // workers inside now
	heads
)

// States of a worker's cell.
const (
	idle = iota
	entering
	inside
	leaving
)

// A board counts the workers inside, in memory that processes share. It does not depend on the
// locks under test, so it sees if a lock admits too many.
type board struct {
	Order
	all []atomic.Int64 // heads counters, then a count for each key, then a cell for each worker
}

// openBoard maps the file of an order. It creates the file if it is missing.
func openBoard(o Order) (*board, error) {
	file, err := os.OpenFile(o.Board, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	n := heads + o.Keys + o.Keys*o.PerKey
	if err := file.Truncate(int64(n) * 8); err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, n*8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", o.Board, err)
	}
	return &board{o, unsafe.Slice((*atomic.Int64)(unsafe.Pointer(&memory[0])), n)}, nil
}

func (b *board) key(worker int) *atomic.Int64  { return &b.all[heads+worker%b.Keys] }
func (b *board) cell(worker int) *atomic.Int64 { return &b.all[heads+b.Keys+worker] }

// enter counts a worker that was admitted. Its cell records the progress, for reap.
func (b *board) enter(worker int) {
	cell := b.cell(worker)
	cell.Store(entering)
	of, in := b.key(worker).Add(1), b.all[total].Add(1)
	cell.Store(inside)
	raise(&b.all[peakKey], of)
	raise(&b.all[peakTotal], in)
	if of > int64(b.Limit) {
		b.all[overKey].Add(1)
	}
	if in > int64(b.Total) {
		b.all[overTotal].Add(1)
	}
}

func (b *board) leave(worker int) {
	cell := b.cell(worker)
	cell.Store(leaving)
	b.all[total].Add(-1)
	b.key(worker).Add(-1)
	cell.Store(idle)
	b.all[done].Add(1)
}

// reap removes a dead worker from the board, and reports whether it was inside. A worker that died
// while it was being counted is subtracted entirely. The board may then count one too few, but
// never blames a lock wrongly.
func (b *board) reap(worker int) (worked bool) {
	state := b.cell(worker).Swap(idle)
	if state != idle {
		b.all[total].Add(-1)
		b.key(worker).Add(-1)
	}
	return state == inside
}

func raise(peak *atomic.Int64, n int64) {
	for was := peak.Load(); n > was && !peak.CompareAndSwap(was, n); was = peak.Load() {
	}
}
