package leasehold

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
)

// Errors to test for with errors.Is. Any other error of a call to the engine means that
// its outcome is unknown.
var (
	// ErrBusy: refused, or not granted within Wait. Nothing is held and nothing queued.
	// errors.As finds a *BusyError with the holder.
	ErrBusy = driver.ErrBusy
	// ErrLost: the lease ended before Release was called. The critical section may have
	// overlapped with another's: roll back.
	ErrLost = driver.ErrLost
	// ErrEvicted: it was lost because somebody evicted it, where the engine tells; such an
	// error matches ErrLost too.
	ErrEvicted = driver.ErrEvicted
	// ErrExpired: it was lost because its deadline passed without a renewal; such an error
	// matches ErrLost too.
	ErrExpired = errors.New("deadline passed without a renewal")
	// ErrReleased: the lease was released already.
	ErrReleased = errors.New("lease already released")
	// ErrUnsupported: the engine can never serve the request; see driver.Features.
	ErrUnsupported = driver.ErrUnsupported
	// ErrInvalidName: a name that no engine accepts; see driver.CheckName.
	ErrInvalidName = driver.ErrInvalidName
	// ErrInvalidOption: an option out of its range, or two that exclude each other.
	ErrInvalidOption = errors.New("invalid option")
	// ErrDeadlock: the context belongs to a holder of the same resource, so that
	// waiting would be waiting for oneself. Reentrant allows nesting.
	ErrDeadlock = errors.New("resource is held by the caller itself")
	// ErrDenied: the engine does not know the caller, or the caller lacks a right. Acquire fails with
	// it at once; a wait that has begun goes on, as rights may come back.
	ErrDenied = driver.ErrDenied
	// ErrReadOnly: the engine answers and takes no writes, as a replica does: it grants and renews nothing. The
	// outcome of the call is unknown. Waits go on, as the engine may take writes again.
	ErrReadOnly = driver.ErrReadOnly
	// ErrFull: the engine answers and has no room: it grants nothing. Some renew and release what is held all the
	// same. The outcome of the call is unknown. Waits go on, as somebody may make room.
	ErrFull = driver.ErrFull
	// ErrClosed: the Locker was closed.
	ErrClosed = driver.ErrClosed
)

// A BusyError is a refusal that says who is in the way. It matches [ErrBusy].
type BusyError struct {
	Resource string // that is held
	// Holder is the one that the engine named last, with Held and Left as of when the call returned; zero
	// where the engine does not tell. Left is 0 where a lease must have been renewed since.
	Holder Holder
}

// Error names the resource and the holder's note, without what would drive a terminal:
// others wrote it. It never contains an owner.
func (e *BusyError) Error() string {
	if e.Holder.Note == "" {
		return fmt.Sprintf("%q is busy", e.Resource)
	}
	note := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, e.Holder.Note)
	if e.Holder.Owner == (Owner{}) {
		return fmt.Sprintf("%q is busy: kept after %s, which is done, for %v more", e.Resource, note, e.Holder.Left.Round(time.Millisecond))
	}
	if e.Holder.Held == 0 {
		return fmt.Sprintf("%q is busy: held by %s", e.Resource, note)
	}
	return fmt.Sprintf("%q is busy: held by %s for %v", e.Resource, note, e.Holder.Held.Round(time.Millisecond))
}

// Is reports whether target is [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }
