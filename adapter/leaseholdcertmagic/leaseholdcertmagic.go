// Package leaseholdcertmagic gives a storage of CertMagic the locks of an engine, so that the
// machines of a cluster do not all obtain the same certificate.
package leaseholdcertmagic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/held"
)

// A Storage is a certmagic.Storage that keeps what it is given in another one, and its locks in an
// engine. It is a certmagic.TryLocker and a certmagic.LockLeaseRenewer too.
//
// Leases are renewed by themselves. CertMagic is not told that one was lost, and goes on with what
// it has begun: two machines may then obtain the same certificate, each a valid one, and the
// later one stays. Before its next attempt it asks by RenewLockLease, and does not begin it
// unless it gets the lock again. Unlock returns an error that matches [leasehold.ErrLost], which
// CertMagic logs.
type Storage struct {
	certmagic.Storage // for all but locks
	locks             *leasehold.Locker
	prefix            string
	held              held.Leases
}

// New returns a Storage that keeps certificates in storage and takes locks whose names begin with
// prefix. All machines must use the same. It does no I/O.
func New(storage certmagic.Storage, locks *leasehold.Locker, prefix string) *Storage {
	return &Storage{Storage: storage, locks: locks, prefix: prefix}
}

// Lock implements certmagic.Locker. It waits until ctx ends, and returns what
// [leasehold.Locker.Acquire] does.
func (s *Storage) Lock(ctx context.Context, name string) error {
	lease, err := s.locks.Acquire(ctx, s.prefix+name)
	if err == nil {
		s.held.Put(lease)
	}
	return err
}

// TryLock implements certmagic.TryLocker: false without an error if another has the lock.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	lease, err := s.locks.TryAcquire(ctx, s.prefix+name)
	switch {
	case errors.Is(err, leasehold.ErrBusy):
		return false, nil
	case err != nil:
		return false, err
	}
	s.held.Put(lease)
	return true, nil
}

// Unlock implements certmagic.Locker. It returns what [leasehold.Lease.Release] does.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	return s.held.Release(ctx, s.prefix+name)
}

// RenewLockLease implements certmagic.LockLeaseRenewer. A lease is renewed anyway, so that the
// duration changes nothing. If it was lost, the lock is asked for again, without waiting: an error
// that matches [leasehold.ErrLost] says that it could not be had.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	former := s.held.Oldest(s.prefix + name)
	if former == nil {
		return fmt.Errorf("leaseholdcertmagic: %q is not locked", name)
	}
	if former.Context().Err() == nil {
		return nil
	}
	next, err := s.locks.TryAcquire(ctx, s.prefix+name)
	if err != nil {
		return errors.Join(context.Cause(former.Context()), err)
	}
	if !s.held.Replace(former, next) {
		return errors.Join(context.Cause(former.Context()), next.Release(ctx))
	}
	return nil
}
