// Package leaseholdcertmagic lets CertMagic take its locks from an engine, so that the machines of
// a cluster do not all obtain the same certificate.
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

// A Storage is a certmagic.Storage that keeps files in another Storage and locks in an engine. It
// also implements certmagic.TryLocker and certmagic.LockLeaseRenewer.
//
// Leases are renewed automatically. CertMagic does not notice a lost lease and finishes the attempt
// it has begun. Two machines may then obtain a valid certificate each; the later one is kept.
// Before its next attempt CertMagic calls RenewLockLease, and gives up unless that takes the lock
// again. Unlock returns an error that matches [leasehold.ErrLost], which CertMagic logs.
type Storage struct {
	certmagic.Storage // for everything but locks
	locks             *leasehold.Locker
	prefix            string
	held              held.Leases
}

// New returns a Storage that keeps certificates in storage and takes locks whose names begin with
// prefix. All machines must use the same prefix. New does no I/O.
func New(storage certmagic.Storage, locks *leasehold.Locker, prefix string) *Storage {
	return &Storage{Storage: storage, locks: locks, prefix: prefix}
}

// Lock implements certmagic.Locker. It waits until ctx ends, and returns the error of
// [leasehold.Locker.Acquire].
func (s *Storage) Lock(ctx context.Context, name string) error {
	lease, err := s.locks.Acquire(ctx, s.prefix+name)
	if err == nil {
		s.held.Put(lease)
	}
	return err
}

// TryLock implements certmagic.TryLocker. If the lock is busy, it returns false and no error.
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

// Unlock implements certmagic.Locker. It returns the error of [leasehold.Lease.Release].
func (s *Storage) Unlock(ctx context.Context, name string) error {
	return s.held.Release(ctx, s.prefix+name)
}

// RenewLockLease implements certmagic.LockLeaseRenewer. It ignores the duration, because leases are
// renewed automatically. If the lease was lost, RenewLockLease tries once to take the lock again.
// If that fails, the error matches [leasehold.ErrLost]. The lock belongs to the process: a lease
// that another caller has acquired since the loss counts too.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	former := s.held.Current(s.prefix + name)
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
