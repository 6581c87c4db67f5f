package leasehold

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/details"
)

// Errors to test for with errors.Is. After an error of Acquire nothing is held: see there. Other
// calls that change something at the engine, such as Release and Extend, have an unknown outcome
// after ErrDenied, ErrReadOnly, ErrFull and all errors that are not listed here. An earlier attempt
// of the same call may have been applied.
var (
	// ErrBusy: the lease was refused, or not granted within Wait. Nothing is held or queued.
	// errors.As finds a *BusyError with the holder.
	ErrBusy = driver.ErrBusy
	// ErrLost: the lease ended before Release was called. The critical section may have
	// overlapped with another's: roll back.
	ErrLost = driver.ErrLost
	// ErrEvicted: the lease was lost because somebody evicted it, and the engine said so. The
	// error matches ErrLost too.
	ErrEvicted = driver.ErrEvicted
	// ErrExpired: the lease was lost because its deadline passed without a renewal. The error
	// matches ErrLost too.
	ErrExpired = errors.New("deadline passed without a renewal")
	// ErrReleased: an earlier Release has returned nil or ErrLost.
	ErrReleased = errors.New("lease already released")
	// ErrUnsupported: the engine can never serve the request; see driver.Features.
	ErrUnsupported = driver.ErrUnsupported
	// ErrInvalidName: no engine accepts the name; see driver.CheckName.
	ErrInvalidName = driver.ErrInvalidName
	// ErrInvalidOption: an option is out of range, or two options exclude each other.
	ErrInvalidOption = errors.New("invalid option")
	// ErrTooHeavy: the weight of the call exceeds its own limit, or one that an operator has set, so
	// no release can make room for it. A call that waits fails when such a limit is set, or at the
	// latest when its turn comes.
	ErrTooHeavy = driver.ErrTooHeavy
	// ErrDeadlock: the context belongs to a holder of the same resource, so the call would wait
	// for itself. Reentrant allows nesting.
	ErrDeadlock = errors.New("resource is held by the caller itself")
	// ErrDenied: the engine does not know the user, or the user lacks a right. Acquire fails at
	// once. A wait that has begun continues, because the rights may come back.
	ErrDenied = driver.ErrDenied
	// ErrReadOnly: the engine answers but accepts no writes, as a replica does. It grants and
	// renews nothing. Waits continue, because the engine may accept writes again.
	ErrReadOnly = driver.ErrReadOnly
	// ErrFull: the engine answers but is full, and grants nothing. Some engines still renew and
	// release leases. Waits continue, because somebody may free space.
	ErrFull = driver.ErrFull
	// ErrClosed: the Locker was closed.
	ErrClosed = driver.ErrClosed
)

// A BusyError is a refusal that names the holder. It matches [ErrBusy].
type BusyError struct {
	Resource string // the one that is held
	// Holder is the one that the engine named last, or zero if the engine names none. Held and
	// Left are as of the return of the call. Left is 0 if the time that the engine named has
	// passed.
	Holder Holder
}

// Error names the resource, and the holder's note and host without control characters, as
// others wrote them. It never contains an owner.
func (e *BusyError) Error() string {
	if e.Holder.Note == "" {
		return fmt.Sprintf("%q is busy", e.Resource)
	}
	note := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, details.Details(e.Holder.Details()).Line())
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
