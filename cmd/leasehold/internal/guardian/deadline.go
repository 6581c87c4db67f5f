//go:build unix

package guardian

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A deadline is memory that the holder and its guardian share. The holder writes it, and the
// guardian reads it for every decision. So a guardian that was stopped for a while knows the last
// renewal. A message could be late, or lost because the socket is full.
type deadline struct{ at *atomic.Int64 }

func (d deadline) set(t instant) { d.at.Store(int64(t)) }
func (d deadline) get() instant  { return instant(d.at.Load()) }

// newDeadline returns the memory, and its file for the guardian.
func newDeadline() (deadline, *os.File, error) {
	file, err := memoryFile()
	if err != nil { // the system has no such memory, or forbids it
		if file, err = os.CreateTemp("", Name+"-"); err != nil {
			return deadline{}, nil, err
		}
		err = os.Remove(file.Name())
	}
	err = errors.Join(err, file.Truncate(int64(os.Getpagesize())))
	d, err2 := mapDeadline(int(file.Fd()))
	if err = errors.Join(err, err2); err != nil {
		file.Close()
		return deadline{}, nil, err
	}
	return d, file, nil
}

// mapDeadline maps the memory of a file that newDeadline returned.
func mapDeadline(fd int) (deadline, error) {
	page, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return deadline{}, os.NewSyscallError("mmap", err)
	}
	return deadline{(*atomic.Int64)(unsafe.Pointer(&page[0]))}, nil
}

func (d deadline) unmap() { unix.MunmapPtr(unsafe.Pointer(d.at), uintptr(os.Getpagesize())) }
